/*
 * Cargo: how one block travels from its files to the device.
 *
 * Its tensors lie in file ranges. These are widened to whole pages and cut into chunks, which are
 * read one by one, and from each of which the tensors' bytes are copied to where they belong in the
 * block's span of the arena. The chunks one after another are the block's image in host memory, if
 * it is kept there (the RAM tier); else each passes through the staging ring.
 *
 *     file   ..|norm|  to_q  |  to_k  |  to_v  |..        chunks begin and end on pages
 *     image    [chunk 0      |chunk 1      |chunk 2]      in host memory
 *     span     |norm| qkv                     |           in the arena, as struct block says
 *
 * A block whose file holds packed tensors (wire/wire.h) crosses packed: its span holds payloads,
 * and is unpacked into a buffer laid out as the block. A block of plain tensors can cross packed
 * too: then its chunks are packed as they come, into an image that is laid out as its span. In the
 * same way one with weights in F8 can cross as BF16: its codes are widened as they come, and its
 * span is laid out as a block of such weights is.
 *
 * A block that adapters patch (adapter/patches.h) crosses as its files have it, with the factors of
 * the adapters behind, and is opened into a buffer laid out as the patched block: unpacked, and
 * patched. Or it is baked: patched as its chunks come, into an image that is laid out so.
 */
#ifndef MEMORY_CARGO_H
#define MEMORY_CARGO_H

#include "adapter/patches.h"
#include "base/checksum.h"
#include "models/model.h"
#include "wire/wire.h"

#define CARGO_CHUNK_BYTES (1u << 20) /* of a read: large enough for a drive, small in a ring */

/* What is kept in a span for a tensor that is packed or widened while it is read
 * (memory/packing.h). */
struct cargo_room {
    uint64_t bytes; /* 0: the tensor stays as it is */
    bool widens;    /* from F8 to BF16; */
    bool bakes;     /* is patched; else packs */
    uint8_t table[WIRE_TABLE];
};

/* One tensor. */
struct cargo_part {
    const struct checkpoint_tensor *tensor;
    const struct cargo_room *room; /* NULL: it crosses as it is stored */
    uint64_t offset, bytes;        /* in the span, as it crosses */
    uint64_t values_offset; /* in the block as it is used: opened, or if it widens, crossed */
    uint64_t unpack_offset; /* there too: where a payload is unpacked to */
    int64_t first, count;   /* rows of the weight, or a vector's columns */
    int32_t weight;
    bool packed;  /* it crosses as a payload */
    bool patched; /* on the device */
};

/* A weight as it is used. */
struct cargo_weight {
    uint64_t offset; /* in the block as it is used */
    enum dtype dtype;
    float scale;
};

/* Some of a part's bytes. */
struct cargo_copy {
    uint64_t from, to, bytes; /* in the chunk; in the span, if the part has no room */
    int32_t part;
};

struct cargo_chunk {
    const struct file *file;
    uint64_t offset, bytes; /* in the file, in whole pages */
    uint64_t least;         /* of these, what must be there: the file may end in the last page */
    uint64_t at;            /* in the image */
    int32_t first_copy, copy_count;
};

struct cargo {
    const struct block *block;
    const struct block_patch *patch; /* NULL: it is not patched */
    struct cargo_weight *weights;    /* [block's] */
    struct cargo_part *parts;
    struct cargo_chunk *chunks;
    struct cargo_copy *copies;
    int32_t part_count, chunk_count, copy_count;
    uint64_t bytes;       /* of the span */
    uint64_t factors_at;  /* in the span, if it is patched on the device */
    uint64_t open_bytes;  /* of the block as it is used */
    uint64_t read_bytes;  /* of all chunks */
    uint64_t image_bytes; /* the same; if it packs, the span in whole pages */
    bool packed;          /* some of it crosses as payloads */
    bool opens;           /* its span is not used as it is: it is unpacked, or patched */
    bool packs;           /* its image is made while it is read: packed, widened or baked */
    bool widens;          /* or bakes: the image is the block as it is used */
};

/* `rooms`: of each piece of each weight, in that order, and not of the cargo; NULL: as the files
 * have it. `patch`, likewise, or NULL: on the device, unless the rooms bake. */
enum shoal_status cargo_init(struct cargo *cargo, const struct block *block,
    const struct cargo_room *rooms, const struct block_patch *patch,
    struct shoal_error *error) SHOAL_CHECKED;
void cargo_fini(struct cargo *cargo); /* accepts a zeroed one */

/* The block's weights as they are used, at `base`: its span, or if it opens what it was opened to.
 */
void cargo_bind(const struct cargo *cargo, device_addr base, struct matrix *weights);

/* The same sizes without the lists: for plans. The largest chunk is CARGO_CHUNK_BYTES at most. */
struct cargo_size {
    uint64_t bytes, image_bytes, open_bytes;
    bool packed, opens;
};
enum shoal_status cargo_measure(const struct block *block, const struct cargo_room *rooms,
    const struct block_patch *patch, struct cargo_size *size,
    struct shoal_error *error) SHOAL_CHECKED;

/*
 * Patching some elements of a part, from its element `first` on: rectangles of them, each with its
 * terms, are given to `patch`. x: where its values lie, as stored; y: where they go. Both are of
 * the elements themselves. Factors are at `factors`, or in host memory if that is 0.
 */
typedef void cargo_patch_rows(
    void *user, struct matrix y, struct matrix x, const struct patch *terms);
void cargo_patch(const struct cargo *cargo, const struct cargo_part *part, int64_t first,
    int64_t count, device_addr x, device_addr y, device_addr factors, cargo_patch_rows *patch,
    void *user);

/*
 * Looks at a chunk that has just been read. SHOAL_E_NUMERIC names a tensor that holds NaN or
 * infinity: no picture comes of it, and finding out here costs nothing beside the read. Of packed
 * tensors the header is checked, and of those that have one the checksum (SHOAL_E_FORMAT). Chunks
 * come in order; `sum` is kept between them.
 */
enum shoal_status cargo_check(const struct cargo *cargo, const struct cargo_chunk *chunk,
    const char *data, struct checksum *sum, struct shoal_error *error) SHOAL_CHECKED;

/*
 * Looks at a chunk of packed files that has been read again: SHOAL_E_IO if a payload's header,
 * which what unpacks it relies on, no longer says what the tensor is. It costs a few bytes' look.
 * What is behind the headers may have changed: unpacking that gives rubbish and does no harm.
 */
enum shoal_status cargo_check_again(const struct cargo *cargo, const struct cargo_chunk *chunk,
    const char *data, struct shoal_error *error) SHOAL_CHECKED;

/* What packs cargos, one after another. */
struct cargo_packer {
    struct pool *pool; /* NULL: the caller alone */
    struct wire_encoder encoder;
    const struct checkpoint_tensor *outgrown; /* after SHOAL_E_UNSUPPORTED: whose room it was */
};

/*
 * Packs a chunk of a cargo that packs, in order, into its image. SHOAL_E_UNSUPPORTED if a tensor
 * takes more than its room: it is not like its sample.
 */
enum shoal_status cargo_pack(const struct cargo *cargo, const struct cargo_chunk *chunk,
    const char *data, struct cargo_packer *packer, char *image,
    struct shoal_error *error) SHOAL_CHECKED;

#endif
