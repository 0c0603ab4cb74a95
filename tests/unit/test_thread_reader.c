/* src/base/reader: both back ends give the bytes of the file, say what failed, and never touch a
 * buffer after they are gone. */
#include "checkpoint_files.h"

#include "base/memory.h"
#include "base/reader_backend.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#ifdef SHOAL_URING
#include <liburing.h>
#endif
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE ((uint64_t)READER_ALIGNMENT)
#define ODD_BYTES (300 * PAGE + 1234)
#define POOL_BYTES (320 * PAGE)

static const enum reader_backend backends[] = {READER_URING, READER_THREADS};
static unsigned char *bytes, *pool; /* what the files hold; where reads go */

/* Some test machines have no io_uring: there the other back end is tested alone. */
static bool reader_for(struct reader **reader, enum reader_backend backend, int depth)
{
    struct shoal_error error = {0};
    enum shoal_status status = reader_create(reader, backend, depth, &error);

    if (status == SHOAL_E_UNSUPPORTED && backend == READER_URING) {
        assert_non_null(strstr(error.text, "threads"));
        return false;
    }
    assert_ok(status);
    return true;
}

#define FOR_EACH_READER(reader, depth)                                                             \
    for (size_t which_ = 0; which_ < 2; which_++)                                                  \
        if (reader_for(&reader, backends[which_], depth))

static void write_bytes(const char *path, uint64_t count)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, count), count);
    assert_int_equal(fsync(fd), 0);
    close(fd);
}

static void open_bytes(const char *path, uint64_t count, struct file *file)
{
    struct shoal_error error = {0};

    write_bytes(path, count);
    assert_ok(file_open(path, file, &error));
}

/* So that the drive is read, where the file system has one. */
static void forget(const struct file *file, uint64_t offset, uint64_t count)
{
    assert_int_equal(posix_fadvise(file->fd, (off_t)offset, (off_t)count, POSIX_FADV_DONTNEED), 0);
}

static void submit(struct reader *reader, const struct file *file, uint64_t offset, uint64_t count,
    uint64_t least, void *to, void *tag)
{
    struct shoal_error error = {0};
    struct read read = {
        .file = file, .offset = offset, .bytes = count, .least = least, .to = to, .tag = tag};

    assert_ok(reader_submit(reader, &read, &error));
}

static void next_ok(struct reader *reader, struct read *read)
{
    struct shoal_error error = {0};

    assert_true(reader_next(reader, true, read, &error));
    assert_ok(read->status);
    assert_true(read->begin_ns && read->end_ns >= read->begin_ns);
}

/* Many reads of random ranges at once, each to a place of its own. */
static void read_randomly(struct reader *reader, const struct file *file, int count, uint64_t most)
{
    uint64_t state = 7, used = 0;
    struct read read;
    int *handed = mem_calloc((size_t)count, sizeof *handed);

    assert_non_null(handed);
    memset(pool, 0xee, POOL_BYTES);
    for (int i = 0; i < count; i++) {
        uint64_t pages = 1 + test_random(&state) % most;
        uint64_t offset = test_random(&state) % (ODD_BYTES / PAGE + 1) * PAGE;
        uint64_t left = ODD_BYTES - offset, least = pages * PAGE < left ? pages * PAGE : left;

        assert_true(used + pages * PAGE <= POOL_BYTES);
        submit(reader, file, offset, pages * PAGE, least, pool + used, &handed[i]);
        used += pages * PAGE;
    }
    for (int i = 0; i < count; i++) {
        next_ok(reader, &read);
        assert_ptr_equal(read.file, file);
        assert_int_equal(*(int *)read.tag, 0);
        *(int *)read.tag = 1;
        assert_memory_equal(read.to, bytes + read.offset, read.least);
    }
    for (int i = 0; i < count; i++)
        assert_int_equal(handed[i], 1);
    assert_false(reader_next(reader, false, &read, NULL));
    mem_free(handed);
}

static void test_random_reads(void **state)
{
    static const int depths[] = {1, 2, 7, 256};
    struct reader *reader;
    struct file file;

    (void)state;
    open_bytes(at("odd"), ODD_BYTES, &file);
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++)
        FOR_EACH_READER(reader, depths[i])
        {
            forget(&file, 0, 0);
            read_randomly(reader, &file, 40, 8);
            read_randomly(reader, &file, 256, 1); /* some of it was read before */
            forget(&file, 0, 0);
            read_randomly(reader, &file, 256, 1);
            reader_destroy(&reader);
            assert_null(reader);
        }
    reader_destroy(&reader);
    file_close(&file);
}

/* A file that lies in pieces in the page cache. */
static void test_half_cached(void **state)
{
    struct shoal_error error = {0};
    struct reader *reader;
    struct file file;
    struct read read;

    (void)state;
    open_bytes(at("half"), ODD_BYTES, &file);
    FOR_EACH_READER(reader, 4)
    for (uint64_t kept = 0; kept <= 300; kept += 60) {
        assert_ok(file_read_at(&file, 0, pool, ODD_BYTES, &error));
        forget(&file, kept * PAGE, 100 * PAGE);
        memset(pool, 0xee, POOL_BYTES);
        submit(reader, &file, 0, POOL_BYTES, ODD_BYTES, pool, NULL);
        next_ok(reader, &read);
        assert_memory_equal(pool, bytes, ODD_BYTES);
        if (kept == 300) reader_destroy(&reader);
    }
    file_close(&file);
}

/* Bytes that must come from the drive leave nothing in the page cache, and start no read-ahead. */
static void test_page_cache_is_left_alone(void **state)
{
    unsigned char held[301];
    struct reader *reader;
    struct file file;
    struct read read;
    void *map;

    (void)state;
    open_bytes(at("alone"), ODD_BYTES, &file);
    map = mmap(NULL, ODD_BYTES, PROT_READ, MAP_SHARED, file.fd, 0);
    assert_true(map != MAP_FAILED);
    FOR_EACH_READER(reader, 4)
    {
        forget(&file, 0, 0);
        for (uint64_t i = 0; i < 8; i++)
            submit(reader, &file, 30 * i * PAGE, 5 * PAGE, 5 * PAGE, pool + 5 * i * PAGE, NULL);
        for (int i = 0; i < 8; i++)
            next_ok(reader, &read);
        assert_int_equal(mincore(map, ODD_BYTES, held), 0);
        if (strstr(reader_describe(reader), "direct"))
            for (int i = 0; i < 301; i++)
                assert_false(held[i] & 1);
        reader_destroy(&reader);
    }
    munmap(map, ODD_BYTES);
    file_close(&file);
}

static void test_across_the_end(void **state)
{
    struct shoal_error error = {0};
    struct reader *reader;
    struct file file;
    struct read read;

    (void)state;
    open_bytes(at("end"), ODD_BYTES, &file);
    FOR_EACH_READER(reader, 3)
    for (int cached = 0; cached < 2; cached++) {
        forget(&file, 0, 0);
        if (cached) assert_ok(file_read_at(&file, 0, pool, ODD_BYTES, &error));
        memset(pool, 0xee, POOL_BYTES);
        submit(reader, &file, 299 * PAGE, 4 * PAGE, PAGE + 1234, pool, NULL);
        next_ok(reader, &read);
        assert_memory_equal(pool, bytes + 299 * PAGE, PAGE + 1234);
        /* One byte more than there is, and all of what is not there. */
        for (int i = 0; i < 2; i++) {
            submit(
                reader, &file, (uint64_t)(299 + 2 * i) * PAGE, 4 * PAGE, PAGE + 1235, pool, NULL);
            assert_true(reader_next(reader, true, &read, &error));
            assert_int_equal(read.status, SHOAL_E_IO);
            assert_int_equal(error.status, SHOAL_E_IO);
            assert_non_null(strstr(error.text, "/end ends at byte "));
            assert_non_null(strstr(error.text, "5331 bytes from byte "));
            assert_non_null(strstr(error.text, i ? "1232896 were" : "1224704 were"));
        }
        if (cached) reader_destroy(&reader);
    }
    file_close(&file);
}

static void test_truncated(void **state)
{
    struct shoal_error error = {0};
    struct reader *reader;
    struct file file;
    struct read read;

    (void)state;
    FOR_EACH_READER(reader, 2)
    {
        open_bytes(at("cut"), ODD_BYTES, &file);
        submit(reader, &file, 0, 4 * PAGE, 4 * PAGE, pool, NULL);
        next_ok(reader, &read);
        assert_int_equal(truncate(file.path, 10 * PAGE + 100), 0);
        submit(reader, &file, 8 * PAGE, 4 * PAGE, 4 * PAGE, pool, NULL);
        assert_true(reader_next(reader, true, &read, &error));
        assert_int_equal(read.status, SHOAL_E_IO);
        assert_non_null(strstr(error.text, "/cut ends at byte 41060: "));
        /* The others are not held up by it. */
        submit(reader, &file, 0, 8 * PAGE, 8 * PAGE, pool, NULL);
        next_ok(reader, &read);
        assert_memory_equal(pool, bytes, 8 * PAGE);
        reader_destroy(&reader);
        file_close(&file);
    }
}

/* The path leads to another file, and the descriptor's number is used again. */
static void test_files_are_told_apart(void **state)
{
    struct reader *reader;
    struct file file;
    struct read read;

    (void)state;
    FOR_EACH_READER(reader, 2)
    {
        open_bytes(at("first"), 8 * PAGE, &file);
        write_bytes(at("second"), 16 * PAGE);
        assert_int_equal(rename(at("second"), at("first")), 0);
        forget(&file, 0, 0);
        submit(reader, &file, 0, 12 * PAGE, 8 * PAGE, pool, NULL);
        next_ok(reader, &read);
        assert_memory_equal(pool, bytes, 8 * PAGE);
        file_close(&file);
        bytes[12 * PAGE]++;
        open_bytes(at("other"), 13 * PAGE, &file);
        forget(&file, 0, 0);
        submit(reader, &file, 0, 16 * PAGE, 13 * PAGE, pool, NULL);
        next_ok(reader, &read);
        assert_memory_equal(pool, bytes, 13 * PAGE);
        file_close(&file);
        reader_destroy(&reader);
    }
}

/* A file system in memory knows no O_DIRECT, or does nothing with it. */
static void test_memory_file_system(void **state)
{
    char path[] = "/dev/shm/shoal-reader-XXXXXX";
    struct reader *reader;
    struct file file;
    int fd = mkstemp(path);

    (void)state;
    if (fd < 0) skip();
    close(fd);
    open_bytes(path, ODD_BYTES, &file);
    FOR_EACH_READER(reader, 8)
    {
        assert_string_equal(reader_describe(reader), which_ ? "8 threads" : "io_uring");
        read_randomly(reader, &file, 40, 8);
        assert_string_equal(
            reader_describe(reader), which_ ? "8 threads, cached" : "io_uring, cached");
        reader_destroy(&reader);
    }
    file_close(&file);
    unlink(path);
}

struct waker {
    struct reader *reader;
    _Atomic int turn;
};

static void wake_often(void *arg)
{
    struct waker *waker = arg;

    for (int i = 0; i < 200; i++) {
        /* Now before the wait, now during it. */
        while (atomic_load(&waker->turn) != i)
            sched_yield();
        if (i % 2) usleep(200);
        reader_wake(waker->reader);
    }
}

static void test_wake(void **state)
{
    struct shoal_error error = {0};
    struct thread thread;
    struct waker waker;
    struct file file;
    struct read read;

    (void)state;
    open_bytes(at("wake"), 64 * PAGE, &file);
    FOR_EACH_READER(waker.reader, 4)
    {
        atomic_init(&waker.turn, 0);
        assert_false(reader_next(waker.reader, false, &read, &error));
        assert_ok(thread_start(&thread, wake_often, &waker, &error));
        for (int i = 0; i < 200; i++) {
            /* A look in passing does not use the wake up. */
            assert_false(reader_next(waker.reader, false, &read, &error));
            assert_false(reader_next(waker.reader, true, &read, &error));
            atomic_store(&waker.turn, i + 1);
        }
        thread_join(&thread);
        /* Among reads: each comes, and so does the wake. */
        forget(&file, 0, 0);
        for (uint64_t i = 0; i < 8; i++)
            submit(
                waker.reader, &file, 8 * i * PAGE, 8 * PAGE, 8 * PAGE, pool + 8 * i * PAGE, NULL);
        reader_wake(waker.reader);
        for (int woken = 0, reads = 0; !woken || reads < 8;)
            if (reader_next(waker.reader, true, &read, &error))
                reads++;
            else
                woken++;
        assert_memory_equal(pool, bytes, 64 * PAGE);
        reader_wake(waker.reader);
        reader_destroy(&waker.reader);
    }
    file_close(&file);
}

/* Nothing writes to the buffers afterwards: they are gone, and ASan watches the threads' reads. */
static void test_destroy_under_way(void **state)
{
    struct reader *reader;
    struct file file;

    (void)state;
    open_bytes(at("busy"), ODD_BYTES, &file);
    for (int depth = 1; depth <= 256; depth *= 4)
        FOR_EACH_READER(reader, depth)
        {
            unsigned char *own = pages_alloc(256 * PAGE), *copy = mem_alloc(256 * PAGE);

            assert_true(own && copy);
            memset(own, 0xee, 256 * PAGE);
            forget(&file, 0, 0);
            for (uint64_t i = 0; i < 256; i++)
                submit(reader, &file, i * PAGE, PAGE, PAGE, own + i * PAGE, NULL);
            reader_destroy(&reader);
            memcpy(copy, own, 256 * PAGE);
            usleep(2000);
            assert_memory_equal(copy, own, 256 * PAGE);
            pages_free(own, 256 * PAGE);
            mem_free(copy);
        }
    file_close(&file);
}

static void make_many(void *arg)
{
    bool *failed = arg;

    for (int i = 0; i < 200 && !*failed; i++) {
        struct shoal_error error = {0};
        struct reader *reader;

        *failed = reader_create(&reader, READER_AUTO, 1 + i % 8, &error) != SHOAL_OK;
        reader_destroy(&reader);
    }
}

/* The memory of a reader that is gone may be another thread's next reader's: no race of theirs. */
static void test_threads_take_turns(void **state)
{
    bool failed[2] = {false, false};
    struct shoal_error error = {0};
    struct thread threads[2];

    (void)state;
    for (int i = 0; i < 2; i++)
        assert_ok(thread_start(&threads[i], make_many, &failed[i], &error));
    for (int i = 0; i < 2; i++)
        thread_join(&threads[i]);
    assert_false(failed[0] || failed[1]);
}

static void test_refusals(void **state)
{
    struct shoal_error error = {0};
    struct reader *reader;
    struct file file, closed;

    (void)state;
    assert_int_equal(reader_create(&reader, READER_AUTO, 0, &error), SHOAL_E_INVALID);
    assert_null(reader);
    assert_int_equal(reader_create(&reader, READER_AUTO, 257, &error), SHOAL_E_INVALID);
    assert_non_null(strstr(error.text, "257 is not in 1..256"));
    open_bytes(at("plain"), 8 * PAGE, &file);
    closed = file;
    closed.fd = -1;
    FOR_EACH_READER(reader, 1)
    {
        const struct read bad[] = {
            {.file = &file, .offset = 1, .bytes = PAGE, .least = 1, .to = pool},
            {.file = &file, .bytes = PAGE + 512, .least = 1, .to = pool},
            {.file = &file, .bytes = PAGE, .least = 1, .to = pool + 64},
            {.file = &file, .bytes = PAGE, .least = 0, .to = pool},
            {.file = &file, .bytes = PAGE, .least = PAGE + 1, .to = pool},
            {.file = &file, .offset = UINT64_MAX - PAGE + 1, .bytes = PAGE, .least = 1, .to = pool},
            {.file = &file, .offset = 1ull << 63, .bytes = PAGE, .least = 1, .to = pool},
        };
        const struct read gone = {.file = &closed, .bytes = PAGE, .least = 1, .to = pool};

        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            assert_int_equal(reader_submit(reader, &bad[i], &error), SHOAL_E_INVALID);
            assert_non_null(strstr(error.text, "/plain: "));
        }
        assert_int_equal(reader_submit(reader, &gone, &error), SHOAL_E_IO);
        assert_non_null(strstr(error.text, "/plain: "));
        reader_destroy(&reader);
    }
    file_close(&file);
}

/* What results of reads mean, those that are hard to come by included. */
static void test_results(void **state)
{
    struct source source = {.fd = 77};
    struct file file = {.fd = 55};
    struct request request = {.source = &source};

    (void)state;
    atomic_store(&source.direct, true);
    request.read = (struct read){
        .file = &file, .offset = 8 * PAGE, .bytes = 4 * PAGE, .least = 3 * PAGE + 7, .to = pool};
    request_begin(&request);
    request_aim(&request);
    assert_true(request.direct && request.fd == 77);
    assert_int_equal(request.offset, 8 * PAGE);
    assert_int_equal(request.bytes, 4 * PAGE);
    /* Once more the same. */
    assert_false(request_took(&request, -EINTR));
    assert_false(request_took(&request, -EAGAIN));
    assert_true(request.again);
    /* A short read goes on where it is aligned. */
    assert_false(request_took(&request, (int64_t)PAGE + 512));
    request_aim(&request);
    assert_int_equal(request.offset, 9 * PAGE);
    assert_int_equal(request.bytes, 3 * PAGE);
    assert_ptr_equal(request.to, pool + PAGE);
    /* O_DIRECT refused late: through the page cache from there. */
    assert_false(request_took(&request, -EINVAL));
    request_aim(&request);
    assert_true(!request.direct && request.fd == 55);
    assert_int_equal(request.offset, 9 * PAGE);
    assert_true(request_took(&request, 2 * (int64_t)PAGE + 7));
    assert_int_equal(request.code, 0);
    assert_int_equal(request.done, 3 * PAGE + 7);
    /* The end, found by a read that brings nothing new. */
    request_begin(&request);
    request_aim(&request);
    assert_false(request_took(&request, 512));
    request_aim(&request);
    assert_true(request_took(&request, 512));
    assert_int_equal(request.code, 0);
    assert_int_equal(request.done, 512);
    request_begin(&request);
    request_aim(&request);
    assert_true(request_took(&request, -EIO));
    assert_int_equal(request.code, EIO);
}

/* What the page cache holds is read through it, and what follows past it. */
static void test_aim(void **state)
{
    struct shoal_error error = {0};
    struct source source = {.fd = 77};
    struct request request = {.source = &source};
    struct file file;
    unsigned char held;

    (void)state;
    open_bytes(at("aim"), ODD_BYTES, &file);
    source.map = mmap(NULL, ODD_BYTES, PROT_READ, MAP_SHARED, file.fd, 0);
    assert_true(source.map != MAP_FAILED);
    source.map_bytes = ODD_BYTES;
    atomic_store(&source.direct, true);
    forget(&file, 0, 0);
    assert_int_equal(posix_fadvise(file.fd, 0, 0, POSIX_FADV_RANDOM), 0); /* no more than is read */
    assert_ok(file_read_at(&file, 0, pool, 100 * PAGE, &error));
    assert_int_equal(mincore((char *)source.map + 100 * PAGE, PAGE, &held), 0);
    if (held & 1) skip(); /* a file system that lies in memory */
    request.read = (struct read){
        .file = &file, .offset = 8 * PAGE, .bytes = 120 * PAGE, .least = 120 * PAGE, .to = pool};
    request_begin(&request);
    request_aim(&request);
    assert_true(!request.direct && request.fd == file.fd);
    assert_int_equal(request.bytes, 92 * PAGE);
    assert_false(request_took(&request, 92 * (int64_t)PAGE));
    request_aim(&request);
    assert_true(request.direct && request.fd == 77);
    assert_int_equal(request.offset, 100 * PAGE);
    assert_int_equal(request.bytes, 28 * PAGE);
    munmap(source.map, ODD_BYTES);
    file_close(&file);
}

/* As containers do. */
static int forbid_io_uring(void)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};

    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static int read_without_io_uring(const struct file *file)
{
    struct reader *reader;
    struct read read = {.file = file, .bytes = 8 * PAGE, .least = 8 * PAGE, .to = pool};

    if (forbid_io_uring()) return 77;
    if (reader_create(&reader, READER_URING, 2, NULL) != SHOAL_E_UNSUPPORTED) return 1;
    if (reader_create(&reader, READER_AUTO, 2, NULL)) return 2;
    if (reader_submit(reader, &read, NULL) || !reader_next(reader, true, &read, NULL)) return 3;
    if (read.status || memcmp(pool, bytes, 8 * PAGE)) return 4;
    if (strncmp(reader_describe(reader), "2 threads, ", 11)) return 5;
    reader_destroy(&reader);
    return 0;
}

static void test_io_uring_refused(void **state)
{
    struct file file;
    int status;
    pid_t child;

    (void)state;
    open_bytes(at("plain"), 8 * PAGE, &file);
    child = fork();
    assert_true(child >= 0);
    if (!child) _exit(read_without_io_uring(&file));
    assert_int_equal(waitpid(child, &status, 0), child);
    file_close(&file);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* A user who may have no more threads: none of the kernel's either. */
static int read_without_workers(struct file *file)
{
    const struct rlimit none = {1, 1};
    struct shoal_error error = {0};
    struct reader *reader;
    struct read read = {.file = file, .bytes = 8 * PAGE, .least = 8 * PAGE, .to = pool};

    if (file_read_at(file, 0, pool, 8 * PAGE, &error)) return 1;
    memset(pool, 0xee, 8 * PAGE);
    /* Of a file of his own he is told what lies in the page cache. */
    if (fchown(file->fd, 65534, 65534) || setgid(65534) || setuid(65534) ||
        setrlimit(RLIMIT_NPROC, &none))
        return 77;
    if (reader_create(&reader, READER_URING, 4, NULL)) return 77;
    for (int i = 0; i < 8; i++)
        if (reader_submit(reader, &read, NULL)) return 2;
    for (int i = 0; i < 8; i++) {
        if (!reader_next(reader, true, &read, &error)) return 3;
        if (read.status) return 4;
    }
    if (memcmp(pool, bytes, 8 * PAGE)) return 5;
    reader_destroy(&reader);
    return 0;
}

static void test_no_workers(void **state)
{
    struct file file;
    int status;
    pid_t child;

    (void)state;
    if (geteuid()) skip(); /* only root can be somebody who has no threads yet */
    open_bytes(at("workers"), 8 * PAGE, &file);
    child = fork();
    assert_true(child >= 0);
    if (!child) _exit(read_without_workers(&file));
    assert_int_equal(waitpid(child, &status, 0), child);
    file_close(&file);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

#ifdef SHOAL_URING

/* The kernel says so often, or always (-1), that it has too little. */
static int refusals, refusal_code;

static bool refuses(void)
{
    if (refusals > 0) refusals--;
    return refusals != 0;
}

int __real_io_uring_submit(struct io_uring *ring);
int __wrap_io_uring_submit(struct io_uring *ring);
int __wrap_io_uring_submit(struct io_uring *ring)
{
    return refuses() ? -refusal_code : __real_io_uring_submit(ring);
}

int __real_io_uring_submit_and_wait(struct io_uring *ring, unsigned count);
int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned count);
int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned count)
{
    return refuses() ? -refusal_code : __real_io_uring_submit_and_wait(ring, count);
}

/* Reads that the kernel takes late are late; those that it never takes fail, and say why. */
static void test_kernel_has_too_little_for_a_while(void **state)
{
    static const int codes[] = {EAGAIN, ENOMEM, EBUSY};
    struct reader *reader;
    struct file file;

    (void)state;
    open_bytes(at("odd"), ODD_BYTES, &file);
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        refusal_code = codes[i];
        refusals = 5; /* while it is made, and while it is used */
        if (!reader_for(&reader, READER_URING, 8)) break;
        refusals = 50;
        forget(&file, 0, 0);
        read_randomly(reader, &file, 100, 3);
        assert_int_equal(refusals, 0);
        reader_destroy(&reader);
    }
    refusals = 0;
    file_close(&file);
}

static void read_in_vain(struct reader *reader, const struct file *file)
{
    struct shoal_error error = {0};
    struct read read;

    forget(file, 0, 0);
    refusals = -1;
    for (uint64_t k = 0; k < 6; k++)
        submit(reader, file, k * PAGE, PAGE, PAGE, pool + k * PAGE, NULL);
    for (int k = 0; k < 6; k++) {
        assert_true(reader_next(reader, true, &read, &error));
        assert_int_equal(read.status, SHOAL_E_IO);
        assert_non_null(strstr(error.text, strerror(refusal_code)));
    }
    refusals = 0; /* it has given up all the same */
    forget(file, 0, 0);
    submit(reader, file, 0, PAGE, PAGE, pool, NULL);
    assert_true(reader_next(reader, true, &read, &error));
    assert_int_equal(read.status, SHOAL_E_IO);
}

static void test_kernel_has_too_little(void **state)
{
    static const int codes[] = {EAGAIN, EPERM};
    struct shoal_error error = {0};
    struct reader *reader;
    struct file file;

    (void)state;
    open_bytes(at("odd"), ODD_BYTES, &file);
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        refusal_code = codes[i];
        if (!reader_for(&reader, READER_URING, 4)) break;
        read_in_vain(reader, &file);
        reader_destroy(&reader);
        /* Destroyed while the kernel refuses. */
        assert_true(reader_for(&reader, READER_URING, 4));
        refusals = -1;
        forget(&file, 0, 0);
        submit(reader, &file, 0, PAGE, PAGE, pool, NULL);
        reader_destroy(&reader);
        /* From the beginning: then threads read. */
        assert_int_equal(reader_create(&reader, READER_URING, 4, &error), SHOAL_E_UNSUPPORTED);
        assert_ok(reader_create(&reader, READER_AUTO, 4, &error));
        read_randomly(reader, &file, 40, 8);
        reader_destroy(&reader);
        refusals = 0;
    }
    file_close(&file);
}

#else

static void test_kernel_has_too_little_for_a_while(void **state)
{
    (void)state;
    skip();
}

static void test_kernel_has_too_little(void **state)
{
    (void)state;
    skip();
}

#endif

static int prepare(void **state)
{
    uint64_t random = 1;

    bytes = mem_alloc(ODD_BYTES);
    pool = pages_alloc(POOL_BYTES);
    if (!bytes || !pool) return -1;
    for (size_t i = 0; i < ODD_BYTES; i++)
        bytes[i] = (unsigned char)test_random(&random);
    return folder_make(state);
}

static int clean(void **state)
{
    mem_free(bytes);
    pages_free(pool, POOL_BYTES);
    return folder_remove(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_reads),
        cmocka_unit_test(test_half_cached),
        cmocka_unit_test(test_page_cache_is_left_alone),
        cmocka_unit_test(test_across_the_end),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_files_are_told_apart),
        cmocka_unit_test(test_memory_file_system),
        cmocka_unit_test(test_wake),
        cmocka_unit_test(test_destroy_under_way),
        cmocka_unit_test(test_threads_take_turns),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_results),
        cmocka_unit_test(test_aim),
        cmocka_unit_test(test_io_uring_refused),
        cmocka_unit_test(test_no_workers),
        cmocka_unit_test(test_kernel_has_too_little_for_a_while),
        cmocka_unit_test(test_kernel_has_too_little),
    };

    return cmocka_run_group_tests(tests, prepare, clean);
}
