/*
 * bench_reader FILE [PIECE_KIB] [MIB_A_TURN] [ROUNDS] [MEMORY_MIB] [small]: how fast a file is read
 * through each back end at each depth, beside a plain loop of preads past the page cache.
 *
 * The file is read from where the turn before left off. Each turn is followed by one of the plain
 * loop, because the drive's rate drifts: what counts is the ratio of neighbours, of which the
 * median is printed, and the best rates. Drop the page cache first: what lies there is not read
 * from the drive.
 *
 * The plain loop reads everything to the same few MiB, as dd iflag=direct does. Where the drive's
 * bytes are copied by a processor (a virtual machine's may be), that memory stays in its cache,
 * and reads to more memory are slower. So the others go round MEMORY_MIB, or round two pieces more
 * than their depth if it is 0, and "plain, round" does the same in a plain loop.
 *
 * The memory is in large pages; "small": in small ones. A drive is told of each page by itself, and
 * a virtual one may need twice the time for it.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "base/reader.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define DEPTHS 6
#define WAYS (2 * DEPTHS + 1) /* the last: the plain loop, round the memory */
#define ROUNDS_MOST 64
#define POOL_BYTES (256ull << 20)

static const enum reader_backend backends[] = {READER_URING, READER_THREADS};

struct bench {
    struct file file;
    int plain; /* past the page cache */
    char *pool;
    uint64_t piece, turn, at; /* bytes */
    uint64_t room;            /* pieces of memory to go round; 0: by depth */
};

struct rate {
    double best, ratios[ROUNDS_MOST], cpu_seconds, bytes;
    int count;
    char name[64];
};

static void die(const char *what)
{
    fprintf(stderr, "bench_reader: %s\n", what);
    exit(1);
}

static double cpu_seconds(void)
{
    struct rusage use;

    getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1e-6;
}

/* Where the next turn begins; it never crosses the end. */
static uint64_t place(struct bench *bench)
{
    uint64_t at = bench->at;

    if (at + bench->turn > bench->file.bytes) at = 0;
    bench->at = at + bench->turn;
    return at;
}

/* Bytes a second. */
static double read_plainly(struct bench *bench, uint64_t room)
{
    uint64_t at = place(bench), begin = clock_ns();

    for (uint64_t done = 0; done < bench->turn; done += bench->piece)
        if (pread(bench->plain, bench->pool + done % (room * bench->piece), bench->piece,
                (off_t)(at + done)) != (ssize_t)bench->piece)
            die("pread failed");
    return (double)bench->turn / (double)(clock_ns() - begin) * 1e9;
}

static double read_deeply(struct bench *bench, struct reader *reader, int depth)
{
    struct shoal_error error;
    struct read read = {.file = &bench->file, .bytes = bench->piece, .least = bench->piece};
    uint64_t at = place(bench), begin = clock_ns(), pieces = bench->turn / bench->piece;
    uint64_t room = bench->room ? bench->room : (uint64_t)depth + 2, given = 0;

    for (uint64_t done = 0; done < pieces; done++) {
        /* Two more than may be under way, so that the drive never waits for this loop. */
        for (; given < pieces && given < done + (uint64_t)depth + 2; given++) {
            read.offset = at + given * bench->piece;
            read.to = bench->pool + given % room * bench->piece;
            if (reader_submit(reader, &read, &error)) die(error.text);
        }
        if (!reader_next(reader, true, &read, &error) || read.status) die(error.text);
    }
    return (double)bench->turn / (double)(clock_ns() - begin) * 1e9;
}

/* False: this back end is not to be had. */
static bool take_way(struct bench *bench, int way, struct rate *rate, double *deep)
{
    struct shoal_error error;
    struct reader *reader;
    int depth = 1 << way % DEPTHS;

    if (way == WAYS - 1) {
        *deep = read_plainly(bench, bench->room ? bench->room : 3);
        snprintf(rate->name, sizeof rate->name, "plain, round");
        return true;
    }
    if (reader_create(&reader, backends[way / DEPTHS], depth, &error)) return false;
    *deep = read_deeply(bench, reader, depth);
    snprintf(rate->name, sizeof rate->name, "%s", reader_describe(reader));
    reader_destroy(&reader);
    return true;
}

static void take_turn(struct bench *bench, int way, struct rate *rate, struct rate *plain)
{
    double begin = cpu_seconds(), middle, deep, beside;

    if (!take_way(bench, way, rate, &deep)) return;
    middle = cpu_seconds();
    beside = read_plainly(bench, 1);
    rate->cpu_seconds += middle - begin;
    plain->cpu_seconds += cpu_seconds() - middle;
    rate->bytes += (double)bench->turn;
    plain->bytes += (double)bench->turn;
    rate->ratios[rate->count++] = deep / beside;
    if (deep > rate->best) rate->best = deep;
    if (beside > plain->best) plain->best = beside;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void print_rates(struct rate *rates, const struct rate *plain)
{
    printf("%-20s depth   best GB/s   median of plain   CPU s/GB\n", "");
    printf("%-20s %5s   %9.2f   %15s   %8.3f\n", "plain", "1", plain->best * 1e-9, "1.00",
        plain->cpu_seconds / plain->bytes * 1e9);
    for (int way = 0; way < WAYS; way++) {
        struct rate *rate = &rates[way];

        if (!rate->count) continue;
        qsort(rate->ratios, (size_t)rate->count, sizeof *rate->ratios, by_value);
        printf("%-20s %5d   %9.2f   %15.2f   %8.3f\n", rate->name, 1 << way % DEPTHS,
            rate->best * 1e-9, rate->ratios[rate->count / 2],
            rate->cpu_seconds / rate->bytes * 1e9);
    }
}

int main(int argc, char **argv)
{
    static struct rate rates[WAYS], plain;
    struct shoal_error error;
    struct bench bench = {.at = 0};
    int rounds = argc > 4 ? atoi(argv[4]) : 5;

    if (argc < 2) die("FILE [PIECE_KIB] [MIB_A_TURN] [ROUNDS]");
    bench.piece = (argc > 2 ? strtoull(argv[2], NULL, 10) : 4096) << 10;
    bench.turn = (argc > 3 ? strtoull(argv[3], NULL, 10) : 512) << 20;
    bench.room =
        bench.piece ? ((argc > 5 ? strtoull(argv[5], NULL, 10) : 0) << 20) / bench.piece : 0;
    if (!bench.piece || bench.piece > POOL_BYTES / 34 || bench.turn % bench.piece)
        die("pieces are up to 7 MiB, and divide a turn");
    if (file_open(argv[1], &bench.file, &error)) die(error.text);
    if (bench.room * bench.piece > POOL_BYTES) die("at most 256 MiB of memory");
    if (bench.turn > bench.file.bytes) die("the file is shorter than a turn");
    if (rounds < 1 || rounds > ROUNDS_MOST) die("1..64 rounds");
    bench.plain = open(argv[1], O_RDONLY | O_DIRECT);
    bench.pool = pages_alloc(POOL_BYTES);
    if (bench.plain < 0 || !bench.pool) die("no O_DIRECT, or no memory");
    if (argc < 7 || strcmp(argv[6], "small")) pages_want_large(bench.pool, POOL_BYTES);
    memset(bench.pool, 1, POOL_BYTES); /* or page faults are measured */
    for (int round = 0; round < rounds; round++)
        for (int way = 0; way < WAYS; way++)
            take_turn(&bench, way, &rates[way], &plain);
    print_rates(rates, &plain);
    pages_free(bench.pool, POOL_BYTES);
    close(bench.plain);
    file_close(&bench.file);
    return 0;
}
