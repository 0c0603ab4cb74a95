/* Calls that fail. Every __wrap_NAME stands for NAME; __real_NAME is what it stands before. */
#include "fault/inject.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef SHOAL_URING
#include <liburing.h>
#endif

/*
 * All is relaxed: what orders the threads of the library must be the library's own, or TSan would
 * see nothing.
 */
static _Atomic bool active, paused;
static _Atomic int64_t calls[INJECT_CALLS], hits, live[INJECT_THINGS];
static struct inject_fault asked;
static bool uring_allowed, cache_allowed;

static bool is_active(void)
{
    return atomic_load_explicit(&active, memory_order_relaxed);
}

static void add(_Atomic int64_t *counter, int64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* Counts a call; true if it is to fail, with errno set. */
static bool fails(enum inject_call call)
{
    int64_t n;

    if (!is_active() || atomic_load_explicit(&paused, memory_order_relaxed)) return false;
    n = atomic_fetch_add_explicit(&calls[call], 1, memory_order_relaxed) + 1;
    if (asked.call != call || !asked.at || n < asked.at || (n > asked.at && !asked.onwards))
        return false;
    add(&hits, 1);
    errno = asked.code;
    return true;
}

/* ---- what is taken and given back: a set of keys, each at the first free place from its own ----
 */

#define PLACES (1u << 18)
#define GONE UINTPTR_MAX

static _Atomic uintptr_t places[PLACES];

static size_t place_of(uintptr_t key)
{
    return (size_t)(((uint64_t)key * 0x9e3779b97f4a7c15u) >> 46);
}

static void take(enum inject_thing thing, uintptr_t key)
{
    if (!is_active() || !key) return;
    for (size_t i = place_of(key);; i++) {
        _Atomic uintptr_t *place = &places[i % PLACES];
        uintptr_t old = atomic_load_explicit(place, memory_order_relaxed);

        if ((old == 0 || old == GONE) && atomic_compare_exchange_strong_explicit(place, &old, key,
                                             memory_order_relaxed, memory_order_relaxed))
            break;
    }
    add(&live[thing], 1);
}

/* False: it was not taken since the begin. */
static bool give_back(enum inject_thing thing, uintptr_t key)
{
    if (!is_active() || !key) return false;
    for (size_t i = place_of(key);; i++) {
        _Atomic uintptr_t *place = &places[i % PLACES];
        uintptr_t old = atomic_load_explicit(place, memory_order_relaxed);

        if (old == 0) return false;
        if (old != key) continue;
        atomic_store_explicit(place, GONE, memory_order_relaxed);
        add(&live[thing], -1);
        return true;
    }
}

static uintptr_t key_of(const void *pointer)
{
    return (uintptr_t)pointer;
}

/* Keys of files and threads are odd: no address of memory is. */
static uintptr_t key_of_file(int fd)
{
    return fd < 0 ? 0 : (uintptr_t)fd * 2 + 1;
}

static uintptr_t key_of_thread(pthread_t thread)
{
    return (uintptr_t)thread | 1;
}

void inject_begin(const struct inject_fault *fault)
{
    memset((void *)places, 0, sizeof places);
    for (int i = 0; i < INJECT_CALLS; i++)
        atomic_store(&calls[i], 0);
    for (int i = 0; i < INJECT_THINGS; i++)
        atomic_store(&live[i], 0);
    atomic_store(&hits, 0);
    asked = fault ? *fault : (struct inject_fault){0};
    atomic_store(&paused, false);
    atomic_store(&active, true);
}

void inject_reading(bool uring, bool cached)
{
    uring_allowed = uring;
    cache_allowed = cached;
}

void inject_pause(void)
{
    atomic_store(&paused, true);
}

struct inject_report inject_end(void)
{
    struct inject_report report = {.hits = atomic_load(&hits)};

    atomic_store(&active, false);
    for (int i = 0; i < INJECT_CALLS; i++)
        report.calls[i] = atomic_load(&calls[i]);
    for (int i = 0; i < INJECT_THINGS; i++)
        report.lost[i] = atomic_load(&live[i]);
    return report;
}

const char *inject_call_name(enum inject_call call)
{
    static const char *const names[INJECT_CALLS] = {
        "allocation", "thread", "open", "look", "read", "write", "sync", "close", "rename"};

    return names[call];
}

/* ---- memory ---- */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *block, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
int __real_posix_memalign(void **block, size_t alignment, size_t bytes);
void __real_free(void *block);

void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes)
{
    void *block = fails(INJECT_ALLOC) ? NULL : __real_malloc(bytes);

    take(INJECT_MEMORY, key_of(block));
    return block;
}

void *__wrap_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size)
{
    void *block = fails(INJECT_ALLOC) ? NULL : __real_calloc(count, size);

    take(INJECT_MEMORY, key_of(block));
    return block;
}

void *__wrap_realloc(void *block, size_t bytes);
void *__wrap_realloc(void *block, size_t bytes)
{
    uintptr_t old = key_of(block);
    bool known;
    void *grown;

    if (fails(INJECT_ALLOC)) return NULL;
    /* Before it is freed: then its address may be another thread's at once. */
    known = give_back(INJECT_MEMORY, old);
    grown = __real_realloc(block, bytes);
    if (grown && (known || !old)) take(INJECT_MEMORY, key_of(grown));
    if (!grown && known) take(INJECT_MEMORY, old);
    return grown;
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    void *block = fails(INJECT_ALLOC) ? NULL : __real_aligned_alloc(alignment, bytes);

    take(INJECT_MEMORY, key_of(block));
    return block;
}

int __wrap_posix_memalign(void **block, size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **block, size_t alignment, size_t bytes)
{
    int code = fails(INJECT_ALLOC) ? ENOMEM : __real_posix_memalign(block, alignment, bytes);

    if (!code) take(INJECT_MEMORY, key_of(*block));
    return code;
}

void __wrap_free(void *block);
void __wrap_free(void *block)
{
    give_back(INJECT_MEMORY, key_of(block));
    __real_free(block);
}

void inject_into_jansson(bool on)
{
    json_set_alloc_funcs(on ? __wrap_malloc : __real_malloc, on ? __wrap_free : __real_free);
}

int __real_munmap(void *pages, size_t bytes);
int __wrap_munmap(void *pages, size_t bytes);
int __wrap_munmap(void *pages, size_t bytes)
{
    give_back(INJECT_PAGES, key_of(pages));
    return __real_munmap(pages, bytes);
}

/* ---- threads ---- */

int __real_pthread_create(
    pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *arg);
int __wrap_pthread_create(
    pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *arg);
int __wrap_pthread_create(
    pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *arg)
{
    int code =
        fails(INJECT_THREAD) ? asked.code : __real_pthread_create(thread, attributes, run, arg);

    if (!code) take(INJECT_THREADS, key_of_thread(*thread));
    return code;
}

int __real_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_join(pthread_t thread, void **result)
{
    give_back(INJECT_THREADS, key_of_thread(thread));
    return __real_pthread_join(thread, result);
}

/* ---- files; where sizes have 64 bits some names end in 64, and others do not ---- */

/* What a call that fails returns, or -2: it does half, or all. Makes *bytes half. */
static ssize_t spoil(enum inject_call call, size_t *bytes)
{
    if (!fails(call)) return -2;
    if (asked.how == INJECT_NOTHING) return 0;
    if (asked.how == INJECT_ERROR) return -1;
    if (*bytes > 1) *bytes /= 2;
    return -2;
}

#define WRAP_OPEN(name)                                                                            \
    int __real_##name(const char *path, int flags, ...);                                           \
    int __wrap_##name(const char *path, int flags, ...);                                           \
    int __wrap_##name(const char *path, int flags, ...)                                            \
    {                                                                                              \
        mode_t mode = 0;                                                                           \
        int fd = -1;                                                                               \
                                                                                                   \
        if (flags & O_CREAT) {                                                                     \
            va_list args;                                                                          \
                                                                                                   \
            va_start(args, flags);                                                                 \
            mode = va_arg(args, mode_t);                                                           \
            va_end(args);                                                                          \
        }                                                                                          \
        if (!fails(INJECT_OPEN)) fd = __real_##name(path, flags, mode);                            \
        take(INJECT_FILES, key_of_file(fd));                                                       \
        return fd;                                                                                 \
    }
WRAP_OPEN(open)
WRAP_OPEN(open64)

#define WRAP_MMAP(name)                                                                            \
    void *__real_##name(void *, size_t, int, int, int, off_t);                                     \
    void *__wrap_##name(void *, size_t, int, int, int, off_t);                                     \
    void *__wrap_##name(void *at, size_t bytes, int access, int flags, int fd, off_t offset)       \
    {                                                                                              \
        void *pages = MAP_FAILED;                                                                  \
                                                                                                   \
        if (!fails(INJECT_ALLOC)) pages = __real_##name(at, bytes, access, flags, fd, offset);     \
        if (pages != MAP_FAILED) take(INJECT_PAGES, key_of(pages));                                \
        return pages;                                                                              \
    }
WRAP_MMAP(mmap)
WRAP_MMAP(mmap64)

#define WRAP_LOOK(name, type)                                                                      \
    int __real_##name(type of, struct stat *info);                                                 \
    int __wrap_##name(type of, struct stat *info);                                                 \
    int __wrap_##name(type of, struct stat *info)                                                  \
    {                                                                                              \
        return fails(INJECT_LOOK) ? -1 : __real_##name(of, info);                                  \
    }
WRAP_LOOK(stat, const char *)
WRAP_LOOK(stat64, const char *)
WRAP_LOOK(lstat, const char *)
WRAP_LOOK(lstat64, const char *)
WRAP_LOOK(fstat, int)
WRAP_LOOK(fstat64, int)

/* Its memory comes from the C library; the caller's free does not know it, and need not. */
char *__real_realpath(const char *path, char *to);
char *__wrap_realpath(const char *path, char *to);
char *__wrap_realpath(const char *path, char *to)
{
    return fails(INJECT_LOOK) ? NULL : __real_realpath(path, to);
}

#define WRAP_TRANSFER(name, call, data)                                                            \
    ssize_t __real_##name(int fd, data, size_t bytes);                                             \
    ssize_t __wrap_##name(int fd, data, size_t bytes);                                             \
    ssize_t __wrap_##name(int fd, data, size_t bytes)                                              \
    {                                                                                              \
        ssize_t result = spoil(call, &bytes);                                                      \
                                                                                                   \
        return result == -2 ? __real_##name(fd, to, bytes) : result;                               \
    }
WRAP_TRANSFER(read, INJECT_READ, void *to)
WRAP_TRANSFER(write, INJECT_WRITE, const void *to)

#define WRAP_TRANSFER_AT(name, call, data)                                                         \
    ssize_t __real_##name(int fd, data, size_t bytes, off_t offset);                               \
    ssize_t __wrap_##name(int fd, data, size_t bytes, off_t offset);                               \
    ssize_t __wrap_##name(int fd, data, size_t bytes, off_t offset)                                \
    {                                                                                              \
        ssize_t result = spoil(call, &bytes);                                                      \
                                                                                                   \
        return result == -2 ? __real_##name(fd, to, bytes, offset) : result;                       \
    }
WRAP_TRANSFER_AT(pread, INJECT_READ, void *to)
WRAP_TRANSFER_AT(pread64, INJECT_READ, void *to)
WRAP_TRANSFER_AT(pwrite, INJECT_WRITE, const void *to)
WRAP_TRANSFER_AT(pwrite64, INJECT_WRITE, const void *to)

/* Says nothing of the page cache, so that the drive is read, unless inject_reading allows it. */
int __real_mincore(void *, size_t, unsigned char *);
int __wrap_mincore(void *, size_t, unsigned char *);
int __wrap_mincore(void *pages, size_t bytes, unsigned char *held)
{
    if (!is_active() || cache_allowed) return __real_mincore(pages, bytes, held);
    errno = EAGAIN;
    return -1;
}

#define WRAP_SIMPLE(name, call, parameters, arguments)                                             \
    int __real_##name parameters;                                                                  \
    int __wrap_##name parameters;                                                                  \
    int __wrap_##name parameters                                                                   \
    {                                                                                              \
        /* These know no short result. */                                                          \
        return fails(call) && asked.how == INJECT_ERROR ? -1 : __real_##name arguments;            \
    }
WRAP_SIMPLE(ftruncate, INJECT_WRITE, (int fd, off_t bytes), (fd, bytes))
WRAP_SIMPLE(ftruncate64, INJECT_WRITE, (int fd, off_t bytes), (fd, bytes))
WRAP_SIMPLE(fsync, INJECT_SYNC, (int fd), (fd))
WRAP_SIMPLE(fdatasync, INJECT_SYNC, (int fd), (fd))
WRAP_SIMPLE(rename, INJECT_RENAME, (const char *from, const char *to), (from, to))
WRAP_SIMPLE(link, INJECT_RENAME, (const char *from, const char *to), (from, to))
WRAP_SIMPLE(mkdir, INJECT_RENAME, (const char *path, mode_t mode), (path, mode))

#define WRAP_FALLOCATE(name)                                                                       \
    int __real_##name(int fd, off_t offset, off_t bytes);                                          \
    int __wrap_##name(int fd, off_t offset, off_t bytes);                                          \
    int __wrap_##name(int fd, off_t offset, off_t bytes)                                           \
    {                                                                                              \
        return fails(INJECT_WRITE) ? asked.code : __real_##name(fd, offset, bytes);                \
    }
WRAP_FALLOCATE(posix_fallocate)
WRAP_FALLOCATE(posix_fallocate64)

int __real_close(int fd);
int __wrap_close(int fd);
int __wrap_close(int fd)
{
    bool failing = fails(INJECT_CLOSE);
    int result;

    give_back(INJECT_FILES, key_of_file(fd));
    result = __real_close(fd);
    if (failing) errno = asked.code;
    return failing ? -1 : result;
}

DIR *__real_opendir(const char *path);
DIR *__wrap_opendir(const char *path);
DIR *__wrap_opendir(const char *path)
{
    DIR *folder = fails(INJECT_OPEN) ? NULL : __real_opendir(path);

    take(INJECT_FOLDERS, key_of(folder));
    return folder;
}

int __real_closedir(DIR *folder);
int __wrap_closedir(DIR *folder);
int __wrap_closedir(DIR *folder)
{
    give_back(INJECT_FOLDERS, key_of(folder));
    return __real_closedir(folder);
}

/* ---- io_uring ---- */

#ifdef SHOAL_URING

int __real_io_uring_queue_init_params(
    unsigned entries, struct io_uring *ring, struct io_uring_params *params);
int __wrap_io_uring_queue_init_params(
    unsigned entries, struct io_uring *ring, struct io_uring_params *params);
int __wrap_io_uring_queue_init_params(
    unsigned entries, struct io_uring *ring, struct io_uring_params *params)
{
    if (is_active() && !uring_allowed) return -ENOSYS;
    return __real_io_uring_queue_init_params(entries, ring, params);
}

/* The read that was put in last is made to fail by the kernel itself: from no file, half as long,
 * or from behind any file's end. */
int __real_io_uring_submit(struct io_uring *ring);
int __wrap_io_uring_submit(struct io_uring *ring);
int __wrap_io_uring_submit(struct io_uring *ring)
{
    unsigned last = (ring->sq.sqe_tail - 1) & *ring->sq.kring_mask;
    struct io_uring_sqe *sqe = &ring->sq.sqes[last];

    if (ring->sq.sqe_tail != ring->sq.sqe_head && sqe->opcode == IORING_OP_READ && sqe->user_data &&
        fails(INJECT_READ)) {
        if (asked.how == INJECT_ERROR) sqe->fd = -1;
        if (asked.how == INJECT_NOTHING) sqe->off = 1ull << 40;
        if (asked.how == INJECT_SHORT && sqe->len > 4096) sqe->len = sqe->len / 2 / 4096 * 4096;
    }
    return __real_io_uring_submit(ring);
}

#endif
