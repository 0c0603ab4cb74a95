/* First-fit offsets: a sorted array of live spans. A few dozen are live at a time. */
#include "base/region.h"

#include "base/memory.h"
#include "base/size.h"

#include <assert.h>
#include <string.h>

struct span {
    uint64_t begin, end;
};

struct region {
    uint64_t capacity, high_water;
    struct span *spans; /* sorted by begin, disjoint */
    size_t count, room;
};

enum shoal_status region_create(
    struct region **region, uint64_t capacity, struct shoal_error *error)
{
    struct region *r = mem_calloc(1, sizeof *r);

    if (!r) FAIL_MEMORY(error);
    r->capacity = capacity;
    *region = r;
    return SHOAL_OK;
}

void region_destroy(struct region **region)
{
    if (!*region) return;
    mem_free((*region)->spans);
    mem_free(*region);
    *region = NULL;
}

enum shoal_status region_alloc(
    struct region *r, uint64_t bytes, uint64_t *offset, struct shoal_error *error)
{
    uint64_t size = size_align(bytes ? bytes : 1, REGION_ALIGNMENT), begin = 0;
    size_t at = 0;

    if (r->count == r->room) {
        size_t room = r->room ? 2 * r->room : 32;
        struct span *spans = mem_realloc(r->spans, room, sizeof *spans);

        if (!spans) FAIL_MEMORY(error);
        r->spans = spans;
        r->room = room;
    }
    while (at < r->count && r->spans[at].begin - begin < size)
        begin = r->spans[at++].end;
    if (begin > r->capacity || r->capacity - begin < size)
        FAIL(error, SHOAL_E_BUDGET,
            "scratch of %llu bytes does not fit: %llu of %llu bytes are in use",
            (unsigned long long)size, (unsigned long long)region_used(r),
            (unsigned long long)r->capacity);
    memmove(r->spans + at + 1, r->spans + at, (r->count - at) * sizeof *r->spans);
    r->spans[at] = (struct span){begin, begin + size};
    r->count++;
    if (begin + size > r->high_water) r->high_water = begin + size;
    *offset = begin;
    return SHOAL_OK;
}

void region_free(struct region *r, uint64_t offset)
{
    for (size_t i = 0; i < r->count; i++) {
        if (r->spans[i].begin != offset) continue;
        r->count--;
        memmove(r->spans + i, r->spans + i + 1, (r->count - i) * sizeof *r->spans);
        return;
    }
    assert(false && "freed an offset that is not allocated");
}

uint64_t region_lowest(const struct region *r, uint64_t offset)
{
    uint64_t begin = 0, size = 0;

    for (size_t i = 0; i < r->count; i++)
        if (r->spans[i].begin == offset) size = r->spans[i].end - offset;
    for (size_t i = 0; r->spans[i].begin != offset && r->spans[i].begin - begin < size; i++)
        begin = r->spans[i].end;
    return begin;
}

uint64_t region_high_water(const struct region *r)
{
    return r->high_water;
}

uint64_t region_used(const struct region *r)
{
    return r->count ? r->spans[r->count - 1].end : 0;
}

void region_reset_high_water(struct region *r)
{
    r->high_water = region_used(r);
}

void region_set_capacity(struct region *r, uint64_t capacity)
{
    assert(region_used(r) <= capacity);
    r->capacity = capacity;
}
