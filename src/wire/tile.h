/*
 * The codec of one tile: the scalar reference, and the same for AVX2 and AVX-512. All give the same
 * bytes. Private to this folder.
 */
#ifndef WIRE_TILE_H
#define WIRE_TILE_H

#include "wire/layout.h"

void wire_table_init(struct wire_table *table, const uint8_t values[WIRE_TABLE]);

/* A tile in a payload. */
struct wire_tile {
    const uint8_t *table; /* struct wire_table's values */
    const uint8_t *record, *part;
    bool raw;
};

/* Room for a coded part of any size, before it is known whether the tile is better left as it is.
 */
#define PART_ROOM (1 + 4 * PLANE_BYTES + WIRE_TILE + 64)

struct wire_path {
    const char *name;

    /* All WIRE_TILE elements. */
    void (*decode)(const struct wire_kind *kind, const struct wire_tile *tile, uint8_t *elements);

    /* The coded bits of each high byte, less the tile's base. */
    void (*values)(
        const struct wire_kind *kind, const uint8_t *elements, uint8_t values[WIRE_TILE]);

    /*
     * Writes the record, and a part into `part` (PART_ROOM), whose bytes are returned; *raw says
     * which of the two kinds of tile it became.
     */
    size_t (*encode)(const struct wire_kind *kind, const struct wire_table *table,
        const uint8_t *elements, uint8_t *record, uint8_t *part, bool *raw);
};

extern const struct wire_path wire_path_reference, wire_path_avx2, wire_path_avx512;

/* The paths that this CPU has, slowest first, beginning with the reference; NULL after the last. */
const struct wire_path *wire_path_at(int index);

/* ---- wire.c: what wire_encode and wire_decode do, on this path ---- */

uint64_t wire_encode_on(const struct wire_path *path, struct pool *pool, enum dtype dtype,
    const void *data, uint64_t count, void *payload);
void wire_decode_on(const struct wire_path *path, const void *payload, struct wire_info info,
    uint64_t first, uint64_t tiles, void *data);

#endif
