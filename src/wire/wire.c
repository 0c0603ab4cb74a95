/*
 * Payloads as wholes: their header and sizes, the check, the choice of the table, and the loops
 * over tiles. What is in a tile is in tile_reference.c and its fast counterparts.
 */
#include "wire/tile.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>

static const char magic[4] = {'s', 'h', 'w', 'p'};

struct header {
    char magic[4];
    uint16_t version;
    uint8_t dtype; /* wire_kind.code */
    uint8_t zero;
    uint64_t count, bytes;
    uint8_t table[WIRE_TABLE];
    uint8_t zeros[HEADER_BYTES - 24 - WIRE_TABLE];
};

_Static_assert(sizeof(struct header) == HEADER_BYTES, "the header has no holes");

static const struct wire_kind kinds[] = {
    {DTYPE_BF16, 1, 2, 0},
    {DTYPE_F16, 2, 2, 3},
    {DTYPE_F8_E4M3, 3, 1, 4},
};

#define KINDS (sizeof kinds / sizeof *kinds)

const struct wire_kind *wire_kind_of(enum dtype dtype)
{
    for (size_t i = 0; i < KINDS; i++)
        if (kinds[i].dtype == dtype) return &kinds[i];
    return NULL;
}

static const struct wire_kind *kind_by_code(uint8_t code)
{
    for (size_t i = 0; i < KINDS; i++)
        if (kinds[i].code == code) return &kinds[i];
    return NULL;
}

bool wire_packs(enum dtype dtype)
{
    return wire_kind_of(dtype) != NULL;
}

bool wire_may_pack(enum dtype dtype, uint64_t count)
{
    return wire_packs(dtype) && count <= WIRE_MOST &&
           count * wire_kind_of(dtype)->bytes >= WIRE_LEAST_BYTES;
}

uint64_t wire_bound(enum dtype dtype, uint64_t count)
{
    const struct wire_kind *kind = wire_kind_of(dtype);
    struct wire_layout layout = layout_of(kind, count);

    return payload_bytes(&layout, layout.tiles * kind_raw_part_bytes(kind));
}

static const struct wire_path *best_path(void)
{
    int index = 0;

    while (wire_path_at(index + 1))
        index++;
    return wire_path_at(index);
}

/* ---- encoding ---- */

/* Fills up a tile whose first `bytes` are there with its last element. */
static void fill_tile(const struct wire_kind *kind, uint8_t tile[2 * WIRE_TILE], size_t bytes)
{
    for (size_t at = bytes; at < (size_t)WIRE_TILE * kind->bytes; at += kind->bytes)
        memcpy(tile + at, tile + bytes - kind->bytes, kind->bytes);
}

#define SAMPLE_TILES 64

/* The commonest values of tiles spread over the whole; among equals, the smaller. */
static void choose_table(const struct wire_path *path, const struct wire_kind *kind,
    const uint8_t *data, uint64_t count, uint8_t table[WIRE_TABLE])
{
    uint8_t last[2 * WIRE_TILE], values[WIRE_TILE];
    uint64_t tiles = wire_tiles(count), sampled = tiles < SAMPLE_TILES ? tiles : SAMPLE_TILES;
    int32_t counts[256] = {0};

    for (uint64_t i = 0; i < sampled; i++) {
        uint64_t tile = i * tiles / sampled, left = count - tile * WIRE_TILE;
        const uint8_t *elements = data + tile * WIRE_TILE * kind->bytes;

        if (left < WIRE_TILE) {
            memcpy(last, elements, left * kind->bytes);
            fill_tile(kind, last, left * kind->bytes);
            elements = last;
        }
        path->values(kind, elements, values);
        for (int j = 0; j < WIRE_TILE; j++)
            counts[values[j]]++;
    }
    for (int rank = 0; rank < WIRE_TABLE; rank++) {
        int most = 0;

        for (int value = 1; value < 256; value++)
            if (counts[value] > counts[most]) most = value;
        table[rank] = (uint8_t)most;
        counts[most] = -1;
    }
}

#define GROUP_TILES 32     /* of one call of the pool */
#define MOST_RAW_PART 1024 /* of any kind's raw tile */

/* Whole tiles, one after another, to be encoded by a pool. */
struct tile_run {
    struct wire_encoder *encoder;
    struct wire_layout layout;
    const uint8_t *data;
    uint64_t tiles;
    _Atomic int64_t turn; /* the group whose parts come next */
};

static uint8_t *entry_at(uint8_t *payload, uint64_t tile)
{
    return payload + HEADER_BYTES + tile * 4;
}

static void put_u32(uint8_t *to, uint32_t value)
{
    memcpy(to, &value, sizeof value);
}

/* Appends the parts of `count` tiles from `first` on. `entries`: their sizes in units. */
static void append_parts(struct wire_encoder *e, const struct wire_layout *layout, uint64_t first,
    uint64_t count, const uint32_t *entries, const uint8_t *parts)
{
    uint64_t bytes = 0;

    for (uint64_t i = 0; i < count; i++) {
        uint64_t at = e->parts_bytes + bytes;

        put_u32(
            entry_at(e->payload, first + i), (uint32_t)(at / PART_UNIT) | (entries[i] & TILE_RAW));
        bytes += (uint64_t)(entries[i] & ~TILE_RAW) * PART_UNIT;
    }
    if (layout->parts + e->parts_bytes + bytes <= e->room)
        memcpy(e->payload + layout->parts + e->parts_bytes, parts, bytes);
    e->parts_bytes += bytes;
}

/* Records have their places; parts are appended in turn. Groups are handed out in order, so that
 * those before this one are ready or nearly so. */
static void encode_group(void *arg, int64_t index, int worker)
{
    struct tile_run *run = arg;
    struct wire_encoder *e = run->encoder;
    uint64_t begin = (uint64_t)index * GROUP_TILES, left = run->tiles - begin;
    uint64_t count = left < GROUP_TILES ? left : GROUP_TILES, first = e->tiles + begin;
    uint8_t parts[GROUP_TILES * MOST_RAW_PART + PART_ROOM];
    uint32_t entries[GROUP_TILES];
    size_t used = 0;

    (void)worker;
    for (uint64_t i = 0; i < count; i++) {
        const uint8_t *elements = run->data + (begin + i) * WIRE_TILE * e->kind->bytes;
        uint8_t *record =
            e->payload + run->layout.records + (first + i) * kind_record_bytes(e->kind);
        bool raw;
        size_t bytes = e->path->encode(e->kind, &e->table, elements, record, parts + used, &raw);

        used += bytes;
        entries[i] = (uint32_t)(bytes / PART_UNIT) | (raw ? TILE_RAW : 0);
    }
    while (atomic_load(&run->turn) != index)
        thread_yield();
    append_parts(e, &run->layout, first, count, entries, parts);
    atomic_store(&run->turn, index + 1);
}

static void encode_tiles(
    struct wire_encoder *e, struct pool *pool, const uint8_t *data, uint64_t tiles)
{
    struct tile_run run = {e, layout_of(e->kind, e->count), data, tiles, 0};
    int64_t groups = (int64_t)((tiles + GROUP_TILES - 1) / GROUP_TILES);

    if (pool)
        pool_run(pool, groups, encode_group, &run);
    else
        for (int64_t i = 0; i < groups; i++)
            encode_group(&run, i, 0);
    e->tiles += tiles;
}

/* Whether all records have room; if not, nothing at all is written. */
static bool has_room(const struct wire_encoder *e)
{
    struct wire_layout layout = layout_of(e->kind, e->count);

    return payload_bytes(&layout, 0) <= e->room;
}

static void begin_on(const struct wire_path *path, struct wire_encoder *e, enum dtype dtype,
    uint64_t count, const uint8_t table[WIRE_TABLE], void *payload, uint64_t room)
{
    *e = (struct wire_encoder){.kind = wire_kind_of(dtype),
        .path = path,
        .payload = payload,
        .count = count,
        .room = room};
    wire_table_init(&e->table, table);
}

void wire_begin(struct wire_encoder *encoder, enum dtype dtype, uint64_t count,
    const uint8_t table[WIRE_TABLE], void *payload, uint64_t room)
{
    begin_on(best_path(), encoder, dtype, count, table, payload, room);
}

void wire_add(struct wire_encoder *e, struct pool *pool, const void *data, uint64_t bytes)
{
    const size_t tile_bytes = (size_t)WIRE_TILE * e->kind->bytes;
    const uint8_t *from = data;

    if (!has_room(e)) return;
    while (bytes) {
        uint64_t some = bytes / tile_bytes * tile_bytes;

        if (!e->kept && some) {
            encode_tiles(e, pool, from, some / tile_bytes);
        } else {
            some = tile_bytes - e->kept < bytes ? tile_bytes - e->kept : bytes;
            memcpy(e->begun + e->kept, from, some);
            e->kept += some;
            if (e->kept == tile_bytes) {
                encode_tiles(e, NULL, e->begun, 1);
                e->kept = 0;
            }
        }
        from += some;
        bytes -= some;
    }
}

uint64_t wire_end(struct wire_encoder *e)
{
    struct wire_layout layout = layout_of(e->kind, e->count);
    struct header header = {.version = WIRE_VERSION, .dtype = e->kind->code, .count = e->count};
    uint64_t end;

    if (!has_room(e)) return payload_bytes(&layout, layout.tiles * kind_raw_part_bytes(e->kind));
    if (e->kept) {
        fill_tile(e->kind, e->begun, e->kept);
        encode_tiles(e, NULL, e->begun, 1);
    }
    assert(e->tiles == layout.tiles);
    header.bytes = payload_bytes(&layout, e->parts_bytes);
    if (header.bytes > e->room) return header.bytes;
    memcpy(header.magic, magic, sizeof magic);
    memcpy(header.table, e->table.values, WIRE_TABLE);
    memcpy(e->payload, &header, sizeof header);
    put_u32(entry_at(e->payload, layout.tiles), (uint32_t)(e->parts_bytes / PART_UNIT));
    end = HEADER_BYTES + (layout.tiles + 1) * 4;
    memset(e->payload + end, 0, layout.records - end);
    end = layout.parts + e->parts_bytes;
    memset(e->payload + end, 0, header.bytes - end);
    return header.bytes;
}

uint64_t wire_encode_on(const struct wire_path *path, struct pool *pool, enum dtype dtype,
    const void *data, uint64_t count, void *payload)
{
    const struct wire_kind *kind = wire_kind_of(dtype);
    struct wire_encoder encoder;
    uint8_t table[WIRE_TABLE];

    choose_table(path, kind, data, count, table);
    begin_on(path, &encoder, dtype, count, table, payload, wire_bound(dtype, count));
    wire_add(&encoder, pool, data, count * kind->bytes);
    return wire_end(&encoder);
}

uint64_t wire_encode(
    struct pool *pool, enum dtype dtype, const void *data, uint64_t count, void *payload)
{
    return wire_encode_on(best_path(), pool, dtype, data, count, payload);
}

struct wire_estimate wire_estimate(enum dtype dtype, const void *sample, uint64_t count)
{
    const struct wire_kind *kind = wire_kind_of(dtype);
    const struct wire_path *path = best_path();
    const uint8_t *data = sample;
    const double tiles = (double)(count / WIRE_TILE), tile_bytes = WIRE_TILE * kind->bytes;
    uint8_t record[2 * WIRE_TILE], part[PART_ROOM];
    struct wire_estimate estimate;
    struct wire_table table;
    double sum = 0, squares = 0;
    bool raw;

    choose_table(path, kind, data, count / WIRE_TILE * WIRE_TILE, estimate.table);
    wire_table_init(&table, estimate.table);
    for (uint64_t tile = 0; tile < count / WIRE_TILE; tile++) {
        const uint8_t *elements = data + tile * WIRE_TILE * kind->bytes;
        double bytes = (double)(4 + kind_record_bytes(kind) +
                                path->encode(kind, &table, elements, record, part, &raw));

        sum += bytes;
        squares += bytes * bytes;
    }
    estimate.part = sum / (tiles * tile_bytes);
    estimate.error =
        sqrt(fmax(squares - sum * sum / tiles, 0) / ((tiles - 1) * tiles)) / tile_bytes;
    return estimate;
}

/* ---- checking ---- */

static enum shoal_status check_header(
    const struct header *header, uint64_t bytes, const char *what, struct shoal_error *error)
{
    if (memcmp(header->magic, magic, sizeof magic))
        FAIL(error, SHOAL_E_FORMAT, "%s: not packed data: it does not begin with 'shwp'", what);
    if (header->version != WIRE_VERSION)
        FAIL(error, SHOAL_E_FORMAT,
            "%s: packed in version %d of the format; this program reads version %d: pack it again",
            what, header->version, WIRE_VERSION);
    if (!kind_by_code(header->dtype))
        FAIL(error, SHOAL_E_FORMAT, "%s: packed data of an unknown element type (%d)", what,
            header->dtype);
    if (header->bytes != bytes)
        FAIL(error, SHOAL_E_FORMAT,
            "%s: packed data of %" PRIu64 " bytes where %" PRIu64 " were "
            "expected",
            what, header->bytes, bytes);
    if (header->count > WIRE_MOST)
        FAIL(error, SHOAL_E_FORMAT, "%s: packed data of too many elements", what);
    for (size_t i = 0; i < sizeof header->zeros; i++)
        if (header->zero || header->zeros[i])
            FAIL(error, SHOAL_E_FORMAT, "%s: packed data with an unknown extension", what);
    return SHOAL_OK;
}

/* 64 bits from a bit on; reads up to 16 bytes. */
static uint64_t bits_at(const uint8_t *from, size_t at)
{
    uint64_t low = load_u64(from + at / 8), high = load_u64(from + at / 8 + 8);

    return low >> at % 8 | high << 1 << (63 - at % 8);
}

/* How many codes of a level are 3: both its planes' bits are set. Planes of `n` bits from `at`. */
static size_t count_escapes(const uint8_t *from, size_t at, size_t n)
{
    size_t escapes = 0;

    for (size_t i = 0; i < n; i += 64) {
        uint64_t both = bits_at(from, at + i) & bits_at(from, at + n + i);

        if (n - i < 64) both &= ((uint64_t)1 << (n - i)) - 1;
        escapes += (size_t)__builtin_popcountll(both);
    }
    return escapes;
}

/* Whether a coded tile's part has the size that its codes say. `codes` is the first level. */
static bool part_holds(const uint8_t *codes, const uint8_t *part, uint64_t bytes)
{
    size_t at = 8, left = count_escapes(codes, 0, WIRE_TILE);

    for (int level = 1; level < LEVELS; level++) {
        if (bytes < (at + 2 * left + 7) / 8) return false;
        at += 2 * left;
        left = count_escapes(part, at - 2 * left, left);
    }
    return bytes == size_align((at + 7) / 8 + left, PART_UNIT);
}

static bool tiles_hold(const struct wire_kind *kind, const struct wire_layout *layout,
    const uint8_t *payload, uint64_t parts_bytes)
{
    uint32_t next = load_u32(payload + HEADER_BYTES);

    if (next & ~TILE_RAW) return false;
    for (uint64_t tile = 0; tile < layout->tiles; tile++) {
        const uint8_t *record = payload + layout->records + tile * kind_record_bytes(kind);
        const uint8_t *codes = record + kind_record_bytes(kind) - 2 * PLANE_BYTES;
        uint32_t entry = next, at = entry & ~TILE_RAW;
        uint64_t bytes;

        next = load_u32(payload + HEADER_BYTES + (tile + 1) * 4);
        if ((next & ~TILE_RAW) < at) return false;
        bytes = (uint64_t)((next & ~TILE_RAW) - at) * PART_UNIT;
        if ((uint64_t)at * PART_UNIT + bytes > parts_bytes) return false;
        if (entry & TILE_RAW
                ? bytes != kind_raw_part_bytes(kind)
                : !part_holds(codes, payload + layout->parts + (uint64_t)at * PART_UNIT, bytes))
            return false;
    }
    return !(next & TILE_RAW);
}

enum shoal_status wire_check_header(const void *payload, uint64_t bytes, const char *what,
    struct wire_info *info, struct shoal_error *error)
{
    const struct wire_kind *kind;
    struct wire_layout layout;
    struct header header;

    if (bytes < HEADER_BYTES)
        FAIL(error, SHOAL_E_FORMAT, "%s: packed data of %" PRIu64 " bytes, too short for a header",
            what, bytes);
    memcpy(&header, payload, sizeof header);
    TRY(check_header(&header, bytes, what, error));
    kind = kind_by_code(header.dtype);
    layout = layout_of(kind, header.count);
    if (payload_bytes(&layout, 0) > bytes)
        FAIL(error, SHOAL_E_FORMAT, "%s: packed data that is shorter than its elements need", what);
    *info = (struct wire_info){kind->dtype, header.count, bytes};
    return SHOAL_OK;
}

enum shoal_status wire_check(const void *payload, uint64_t bytes, const char *what,
    struct wire_info *info, struct shoal_error *error)
{
    const struct wire_kind *kind;
    struct wire_layout layout;
    uint64_t parts_bytes;

    TRY(wire_check_header(payload, bytes, what, info, error));
    kind = wire_kind_of(info->dtype);
    layout = layout_of(kind, info->count);
    parts_bytes =
        (uint64_t)load_u32((const uint8_t *)payload + HEADER_BYTES + layout.tiles * 4) * PART_UNIT;
    if (payload_bytes(&layout, parts_bytes) != bytes ||
        !tiles_hold(kind, &layout, payload, parts_bytes))
        FAIL(error, SHOAL_E_FORMAT, "%s: packed data that contradicts itself: it is damaged", what);
    return SHOAL_OK;
}

/* ---- decoding ---- */

_Static_assert(PART_ROOM < WIRE_OVERRUN, "a part that is not there is read as one that is");

/*
 * Where a tile's part lies. Only in damaged payloads does it begin behind them; any other place
 * will do then. One that might reach behind them, as the last ones might, is read from `room`.
 */
static const uint8_t *part_at(
    const uint8_t *parts, uint64_t parts_bytes, uint64_t at, uint8_t room[PART_ROOM])
{
    if (at >= parts_bytes) at = 0;
    if (parts_bytes - at >= PART_ROOM) return parts + at;
    memset(room, 0, PART_ROOM);
    memcpy(room, parts + at, parts_bytes - at);
    return room;
}

void wire_decode_on(const struct wire_path *path, const void *payload, struct wire_info info,
    uint64_t first, uint64_t tiles, void *data)
{
    const uint8_t *bytes = payload;
    const struct header *header = payload;
    uint8_t *to = data;
    const struct wire_kind *kind = wire_kind_of(info.dtype);
    struct wire_layout layout = layout_of(kind, info.count);
    uint8_t room[PART_ROOM];

    for (uint64_t i = first; i < first + tiles; i++) {
        uint32_t entry = load_u32(bytes + HEADER_BYTES + i * 4);
        uint64_t at = (uint64_t)(entry & ~TILE_RAW) * PART_UNIT;
        struct wire_tile tile = {header->table,
            bytes + layout.records + i * kind_record_bytes(kind),
            part_at(bytes + layout.parts, info.bytes - layout.parts, at, room), entry & TILE_RAW};
        uint64_t left = info.count - i * WIRE_TILE;
        uint8_t buffer[2 * WIRE_TILE];

        path->decode(kind, &tile, left < WIRE_TILE ? buffer : to);
        if (left < WIRE_TILE) memcpy(to, buffer, left * kind->bytes);
        to += WIRE_TILE * kind->bytes;
    }
}

void wire_decode_reference(
    const void *payload, struct wire_info info, uint64_t first, uint64_t tiles, void *data)
{
    wire_decode_on(wire_path_at(0), payload, info, first, tiles, data);
}

void wire_decode(
    const void *payload, struct wire_info info, uint64_t first, uint64_t tiles, void *data)
{
    wire_decode_on(best_path(), payload, info, first, tiles, data);
}
