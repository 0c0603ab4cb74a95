/* libshoal.so is the static core as a whole; a shared library needs one source of its own. */
#include "shoal/shoal.h"

extern const char *shoal_version(void);
