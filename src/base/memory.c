/* Host memory over malloc and mmap. */
#include "base/memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void *mem_alloc(size_t bytes)
{
    return malloc(bytes ? bytes : 1);
}

void *mem_calloc(size_t count, size_t size)
{
    return calloc(count ? count : 1, size ? size : 1);
}

void *mem_realloc(void *block, size_t count, size_t size)
{
    size_t bytes;

    if (__builtin_mul_overflow(count, size, &bytes)) return NULL;
    return realloc(block, bytes ? bytes : 1);
}

char *mem_strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = mem_alloc(bytes);

    return copy ? memcpy(copy, text, bytes) : NULL;
}

char *mem_format(const char *format, ...)
{
    va_list args;
    char *text;
    int length;

    va_start(args, format);
    length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (length < 0 || !(text = mem_alloc((size_t)length + 1))) return NULL;
    va_start(args, format);
    vsnprintf(text, (size_t)length + 1, format, args);
    va_end(args);
    return text;
}

void mem_free(void *block)
{
    free(block);
}

uint64_t memory_physical(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);

    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : UINT64_MAX;
}

uint64_t memory_resident(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");

    if (!file) return 0;
    if (fscanf(file, "%*u %llu", &pages) != 1) pages = 0;
    fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

void *pages_alloc(size_t bytes)
{
    void *pages = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return pages == MAP_FAILED ? NULL : pages;
}

void pages_free(void *pages, size_t bytes)
{
    if (pages) munmap(pages, bytes ? bytes : 1);
}

void pages_want_large(void *pages, size_t bytes)
{
#ifdef MADV_HUGEPAGE
    madvise(pages, bytes, MADV_HUGEPAGE);
#else
    (void)pages, (void)bytes;
#endif
}
