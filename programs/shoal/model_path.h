/* Where a model is that the user names: "mini" is the embedded one, anything else a path. */
#ifndef MODEL_PATH_H
#define MODEL_PATH_H

#include <stdbool.h>

/* What -m means when it is not given. */
#define MODEL_DEFAULT "mini"

/* Room for any path that the kernel takes. */
#define MODEL_PATH_BYTES 4096

/*
 * The path to open for `name`, which may be `buffer`. NULL if the embedded model is nowhere to be
 * found; the reader has then been told where it was looked for.
 */
const char *model_path_find(const char *name, char buffer[MODEL_PATH_BYTES]);

#endif
