/* Which of the codecs this CPU has. */
#include "wire/tile.h"

const struct wire_path *wire_path_at(int index)
{
    const struct wire_path *list[] = {&wire_path_reference};

    return index < 1 ? list[index] : NULL;
}
