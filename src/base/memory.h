/* Host memory: the one place the library allocates from, so that tests can make it fail. */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* NULL when out of memory. A count or size of 0 gives a pointer that may be freed. */
void *mem_alloc(size_t bytes);
void *mem_calloc(size_t count, size_t size);               /* checked for overflow, zeroed */
void *mem_realloc(void *block, size_t count, size_t size); /* checked for overflow */
char *mem_strdup(const char *text);
char *mem_format(const char *format, ...) __attribute__((format(printf, 1, 2)));
void mem_free(void *block); /* accepts NULL */

/* The machine's RAM in bytes; UINT64_MAX if it cannot be told. */
uint64_t memory_physical(void);
/* What the process has of it now; 0 if it cannot be told. */
uint64_t memory_resident(void);

#define HOST_PAGE_BYTES 4096 /* what pages_alloc rounds up to */

/* Page-aligned, zeroed, committed on touch; bytes rounded up to pages. NULL when out of memory. */
void *pages_alloc(size_t bytes);
void pages_free(void *pages, size_t bytes); /* accepts NULL */
/* Asks for large pages, where the system has them: much fewer faults. A hint. */
void pages_want_large(void *pages, size_t bytes);

#endif
