/*
 * The lossless wire: weights packed to fewer bytes and restored bit for bit.
 *
 * A payload is one tensor packed: a header that says what it is, then tiles of WIRE_TILE elements,
 * each to be decoded alone. docs/formats.md describes every byte. Any bit pattern survives; data
 * that does not pack costs a bounded few bytes more.
 */
#ifndef WIRE_WIRE_H
#define WIRE_WIRE_H

#include "base/thread.h"
#include "tensor/dtype.h"

#define WIRE_TILE 1024
#define WIRE_VERSION 1
#define WIRE_ALIGNMENT 64             /* of a payload's address, and its size is a multiple */
#define WIRE_MOST ((uint64_t)1 << 33) /* elements of a payload; the caller sees to it */
#define WIRE_WORTH_WHILE 0.95         /* a tensor is packed only if it comes to less of its bytes */
#define WIRE_LEAST_BYTES 65536        /* smaller tensors stay as they are */
#define WIRE_TABLE 9                  /* values in a payload's table */

/* Whether there is a codec for it. */
bool wire_packs(enum dtype dtype);

/* Whether a tensor of so many elements is worth a try, and whether what came of it is worth it. */
bool wire_may_pack(enum dtype dtype, uint64_t count);
static inline bool wire_is_worth(uint64_t packed_bytes, uint64_t bytes)
{
    return (double)packed_bytes < WIRE_WORTH_WHILE * (double)bytes;
}

static inline uint64_t wire_tiles(uint64_t count)
{
    return count / WIRE_TILE + (count % WIRE_TILE != 0);
}

/* The most bytes that a payload of `count` elements takes. */
uint64_t wire_bound(enum dtype dtype, uint64_t count);

/*
 * Packs `count` elements into `payload`, which has room for wire_bound, on the pool's workers
 * (NULL: on the caller). Returns the payload's bytes. The bytes do not depend on the pool.
 */
uint64_t wire_encode(
    struct pool *pool, enum dtype dtype, const void *data, uint64_t count, void *payload);

/* The commonest values of a tensor, and each value's rank among them; WIRE_TABLE for all others. */
struct wire_table {
    uint8_t values[WIRE_TABLE]; /* three of the first level, then the next's */
    uint8_t ranks[256];
};

/*
 * The same piece by piece, as the elements come from somewhere. The payload has `room` bytes and
 * nothing is written behind them, whatever the data; wire_end returns what it takes, and where that
 * is more than the room the payload is of no use. The bytes depend on elements and table only.
 */
struct wire_encoder {
    const struct wire_kind *kind;
    const struct wire_path *path;
    struct wire_table table;
    uint8_t *payload;
    uint64_t count, room;
    uint64_t tiles, parts_bytes; /* done so far */
    size_t kept;                 /* bytes of a tile that has begun */
    uint8_t begun[2 * WIRE_TILE];
};

void wire_begin(struct wire_encoder *encoder, enum dtype dtype, uint64_t count,
    const uint8_t table[WIRE_TABLE], void *payload, uint64_t room);
/* The next bytes; a piece may end within an element. All together are count elements' at most. */
void wire_add(struct wire_encoder *encoder, struct pool *pool, const void *data, uint64_t bytes);
uint64_t wire_end(struct wire_encoder *encoder);

/* What a payload's header says. */
struct wire_info {
    enum dtype dtype;
    uint64_t count; /* elements */
    uint64_t bytes; /* of the payload */
};

/*
 * Everything that decoding relies on is checked, so that a hostile payload cannot make it read or
 * write out of bounds. SHOAL_E_FORMAT begins with `what`, e.g. "model.safetensors: tensor x".
 */
enum shoal_status wire_check(const void *payload, uint64_t bytes, const char *what,
    struct wire_info *info, struct shoal_error *error) SHOAL_CHECKED;

#define WIRE_HEADER_BYTES 64

/*
 * What can be told from the header alone, of a payload that is said to have `bytes` bytes: the same
 * errors as wire_check's. After it, decoding what *info says stays within the payload, and on a
 * card within WIRE_OVERRUN bytes behind it, whatever the payload holds: its header too.
 */
enum shoal_status wire_check_header(const void *header, uint64_t bytes, const char *what,
    struct wire_info *info, struct shoal_error *error) SHOAL_CHECKED;

#define WIRE_OVERRUN 2048

/* Tiles [first, first + tiles) to `data`, where tile `first` begins. The payload was checked to be
 * what `info` says, which its header is not asked again. The scalar reference, and the fastest that
 * this CPU has: the same bits. */
void wire_decode_reference(
    const void *payload, struct wire_info info, uint64_t first, uint64_t tiles, void *data);
void wire_decode(
    const void *payload, struct wire_info info, uint64_t first, uint64_t tiles, void *data);

/*
 * From a sample of whole tiles of a tensor, `count` elements, two or more: what of its bytes it
 * will keep if it is packed with the table that is chosen here, and the standard error of that.
 */
struct wire_estimate {
    double part, error;
    uint8_t table[WIRE_TABLE];
};
struct wire_estimate wire_estimate(enum dtype dtype, const void *sample, uint64_t count);

#endif
