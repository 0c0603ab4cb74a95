/*
 * The emulator: fibres, their turns, and what they exchange. A fibre runs until it waits for
 * others; the last to arrive lets all of them go on. When nobody can go on, or somebody does what
 * no GPU does, the launch ends with a sentence about it.
 */
#include "cuda/emulate.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#define MAX_THREADS 1024
#define STACK_BYTES ((size_t)256 << 10)
#define PAGE_BYTES ((size_t)4096)

struct emulate_block emulate_block;

/* All of the kernels' __shared__ variables; the linker names a section's ends. */
extern "C" unsigned char __start_shoal_shared[] __attribute__((weak));
extern "C" unsigned char __stop_shoal_shared[] __attribute__((weak));

namespace
{

enum state : unsigned char { READY, AT_BARRIER, IN_EXCHANGE, EXITED };

struct later {
    unsigned char *to;
    uint4 value;
    uint32_t group;
};

struct fibre {
    void *stack_pointer; /* where it was left */
    const char *what;    /* it waits in */
    unsigned char *stack;
    void *fake_stack;    /* ASan's */
    uint32_t copy_group; /* the one that its next copies belong to */
    std::vector<struct later> copies;
#if !defined(__x86_64__)
    ucontext_t context; /* where it was left, then */
#endif
};

struct warp {
    uint32_t lanes, arrived, turn;
    const char *what;
    struct emulate_given given[2][WARP]; /* lanes still read one exchange when others are at the
                                            next */
};

struct machine {
    enum state states[MAX_THREADS]; /* of the threads, close together: they are looked at most */
    struct fibre threads[MAX_THREADS], host;
    struct warp warps[MAX_THREADS / WARP];
    uint32_t count, current; /* threads of the block, the one that runs */
    uint32_t at_barrier, exited;
    bool backwards;
    bool gave_up;     /* in the launch before */
    const char *name; /* of the kernel */
    emulate_kernel *kernel;
    const void *args;
    size_t shared_bytes;
    const void *host_stack;
    size_t host_stack_bytes;
    char error[512];
};

struct machine m;

/* ---- from one stack to another ---- */

#if defined(__x86_64__)
extern "C" void emulate_switch(void **left, void *entered);
asm(R"(
    .text
    .type emulate_switch, @function
emulate_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
    .size emulate_switch, . - emulate_switch
)");

void prepare(struct fibre *f, void entry())
{
    void **top = (void **)(f->stack + STACK_BYTES);

    *--top = NULL; /* the caller that entry does not have */
    *--top = (void *)entry;
    top -= 6; /* registers */
    memset(top, 0, 6 * sizeof *top);
    f->stack_pointer = top;
}

void change(struct fibre *left, struct fibre *entered)
{
    emulate_switch(&left->stack_pointer, entered->stack_pointer);
}
#else
void prepare(struct fibre *f, void entry())
{
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&f->context, entry, 0);
}

void change(struct fibre *left, struct fibre *entered)
{
    swapcontext(&left->context, &entered->context);
}
#endif

#if defined(__SANITIZE_ADDRESS__)
void leave(struct fibre *left, const struct fibre *entered, bool for_good)
{
    bool to_host = entered == &m.host;

    __sanitizer_start_switch_fiber(for_good ? NULL : &left->fake_stack,
        to_host ? m.host_stack : entered->stack, to_host ? m.host_stack_bytes : STACK_BYTES);
}

/* The first time on a fibre, where it came from is the host. */
void arrive(struct fibre *entered, bool from_host)
{
    const void *bottom;
    size_t bytes;

    __sanitizer_finish_switch_fiber(entered->fake_stack, &bottom, &bytes);
    if (!from_host) return;
    m.host_stack = bottom;
    m.host_stack_bytes = bytes;
}

/* Of what was left on it: by threads that returned little, by those that were given up all. */
void clean_stack(struct fibre *f)
{
    size_t bytes = m.gave_up ? STACK_BYTES : PAGE_BYTES;

    __asan_unpoison_memory_region(f->stack + STACK_BYTES - bytes, bytes);
    f->fake_stack = NULL;
}
#else
void leave(struct fibre *, const struct fibre *, bool) {}

void arrive(struct fibre *, bool) {}

void clean_stack(struct fibre *) {}
#endif

bool entered_from_host; /* by the last switch */

void switch_to(struct fibre *left, struct fibre *entered, bool for_good)
{
    entered_from_host = left == &m.host;
    leave(left, entered, for_good);
    change(left, entered);
    arrive(left, entered_from_host);
}

struct fibre *self()
{
    return &m.threads[m.current];
}

void enter(uint32_t thread)
{
    struct fibre *left = self();

    if (thread == m.current) return;
    m.current = thread;
    emulate_block.thread.x = thread;
    switch_to(left, &m.threads[thread], m.states[left - m.threads] == EXITED);
}

/* ---- turns ---- */

[[noreturn]] __attribute__((format(printf, 1, 2))) void give_up(const char *format, ...)
{
    va_list arguments;
    int used = snprintf(m.error, sizeof m.error, "kernel %s, block %u, thread %u: ", m.name,
        emulate_block.block.x, m.current);

    va_start(arguments, format);
    vsnprintf(m.error + used, sizeof m.error - (size_t)used, format, arguments);
    va_end(arguments);
    switch_to(self(), &m.host, true);
    abort();
}

/* Names a thread that waits for what does not happen. */
[[noreturn]] void stuck()
{
    const char *what = NULL, *other = NULL;
    uint32_t thread = 0, different = 0;

    for (uint32_t i = 0; i < m.count; i++) {
        const struct fibre *f = &m.threads[i];

        if (m.states[i] == EXITED) continue;
        if (!what) {
            what = f->what;
            thread = i;
        } else if (strcmp(what, f->what) != 0 && !other) {
            other = f->what;
            different = i;
        }
    }
    m.current = thread;
    if (other)
        give_up(
            "waits in %s, but thread %u in %s (%u have exited)", what, different, other, m.exited);
    give_up("waits in %s, but %u threads have exited", what, m.exited);
}

/* Somebody else's turn, until this thread is ready again. */
void wait(enum state state, const char *what)
{
    uint32_t mine = m.current, next = mine;

    m.states[mine] = state;
    self()->what = what;
    do {
        next = m.backwards ? (next ? next : m.count) - 1 : (next + 1 == m.count ? 0 : next + 1);
        if (m.states[next] == READY) {
            enter(next);
            return; /* whoever comes back here does so because it is ready */
        }
    } while (next != mine);
    stuck();
}

void release(uint32_t first, uint32_t count, enum state waiting)
{
    for (uint32_t i = first; i < first + count; i++)
        if (m.states[i] == waiting) m.states[i] = READY;
}

void run_thread()
{
    arrive(self(), entered_from_host);
    m.kernel(m.args);
    m.exited++;
    m.states[m.current] = EXITED;
    if (m.exited == m.count) switch_to(self(), &m.host, true);
    wait(EXITED, "nothing");
    abort();
}

/* ---- blocks ---- */

void allocate_stacks()
{
    for (uint32_t i = 0; i < m.count; i++) {
        if (m.threads[i].stack) continue;

        void *map = mmap(NULL, PAGE_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        if (map == MAP_FAILED || mprotect(map, PAGE_BYTES, PROT_NONE)) abort();
        m.threads[i].stack = (unsigned char *)map + PAGE_BYTES;
    }
}

void start_threads()
{
    for (uint32_t i = 0; i < m.count; i++) {
        struct fibre *f = &m.threads[i];

        clean_stack(f);
        m.states[i] = READY;
        f->copy_group = 0;
        f->copies.clear();
        prepare(f, run_thread);
    }
    for (uint32_t i = 0; i < m.count; i += WARP) {
        struct warp *w = &m.warps[i / WARP];

        w->lanes = m.count - i < WARP ? m.count - i : WARP;
        w->arrived = 0;
        w->what = NULL;
    }
    m.at_barrier = m.exited = 0;
}

/* What one block leaves in shared memory, the next must not count on. The red zones of ASan
 * between the variables do not mind. */
__attribute__((no_sanitize("address"))) void spoil_shared()
{
    volatile uint64_t *end = (volatile uint64_t *)__stop_shoal_shared;

    for (volatile uint64_t *p = (volatile uint64_t *)__start_shoal_shared; p + 1 <= end; p++)
        *p = ~(uint64_t)0;
    memset(emulate_block.shared, 0xff, m.shared_bytes);
}

void run_block(uint64_t index)
{
    const struct emulate_size *grid = &emulate_block.grid;

    emulate_block.block = {(uint32_t)(index % grid->x), (uint32_t)(index / grid->x % grid->y),
        (uint32_t)(index / grid->x / grid->y)};
    spoil_shared();
    start_threads();
    m.current = m.backwards ? m.count - 1 : 0;
    emulate_block.thread = {m.current, 0, 0};
    switch_to(&m.host, self(), false);
    m.gave_up = false;
}

} // namespace

void emulate_set_order(int backwards)
{
    m.backwards = backwards != 0;
}

const char *emulate_launch(const char *name, emulate_kernel *kernel, const void *args,
    struct emulate_size grid, struct emulate_size threads, size_t shared_bytes)
{
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    void *shared;

    m.name = name;
    m.kernel = kernel;
    m.args = args;
    m.count = threads.x;
    m.shared_bytes = shared_bytes;
    m.gave_up = m.error[0] != 0;
    m.error[0] = 0;
    if (!blocks || grid.x > 0x7fffffff || grid.y > 0xffff || grid.z > 0xffff || !threads.x ||
        threads.x > MAX_THREADS || threads.y != 1 || threads.z != 1) {
        snprintf(m.error, sizeof m.error,
            "kernel %s: no grid of %u x %u x %u blocks of %u x %u x %u threads", name, grid.x,
            grid.y, grid.z, threads.x, threads.y, threads.z);
        return m.error;
    }
    if (posix_memalign(&shared, 128, shared_bytes)) abort();
    emulate_block.grid = grid;
    emulate_block.threads = threads;
    emulate_block.shared = (unsigned char *)shared;
    allocate_stacks();
    for (uint64_t i = 0; i < blocks && !m.error[0]; i++)
        run_block(m.backwards ? blocks - 1 - i : i);
    free(shared);
    emulate_block.shared = NULL;
    return m.error[0] ? m.error : NULL;
}

/* ---- what threads do together ---- */

void emulate_sync_threads(void)
{
    if (++m.at_barrier == m.count) {
        m.at_barrier = 0;
        release(0, m.count, AT_BARRIER);
    } else {
        wait(AT_BARRIER, "sync_threads");
    }
}

struct emulate_given *emulate_table(const char *what)
{
    struct warp *w = &m.warps[m.current / WARP];

    if (w->lanes < WARP) give_up("%s in a warp of %u threads", what, w->lanes);
    if (w->arrived && w->what != what && strcmp(w->what, what) != 0)
        give_up("is in %s, but others of its warp in %s", what, w->what);
    w->what = what;
    return w->given[w->turn % 2];
}

void emulate_meet(void)
{
    struct warp *w = &m.warps[m.current / WARP];

    if (++w->arrived == WARP) {
        w->arrived = 0;
        w->turn++;
        release(m.current / WARP * WARP, WARP, IN_EXCHANGE);
    } else {
        wait(IN_EXCHANGE, w->what);
    }
}

void emulate_sync_warp(void)
{
    emulate_table("sync_warp");
    emulate_meet();
}

/* ---- addresses ---- */

void emulate_check_aligned(const char *what, const void *at, size_t bytes)
{
    if ((uintptr_t)at % bytes) give_up("%s: %p is not aligned to %zu bytes", what, at, bytes);
}

void emulate_check_shared(const char *what, const void *at, size_t bytes)
{
    const unsigned char *p = (const unsigned char *)at;
    bool dynamic = p >= emulate_block.shared && p + bytes <= emulate_block.shared + m.shared_bytes;

    emulate_check_aligned(what, at, bytes);
    if (!dynamic && !(p >= __start_shoal_shared && p + bytes <= __stop_shoal_shared))
        give_up("%s: %p is not in shared memory", what, at);
}

/* ---- asynchronous copies ---- */

void emulate_copy_later(void *shared, const void *value)
{
    struct later copy = {(unsigned char *)shared, {}, self()->copy_group};

    memcpy(&copy.value, value, sizeof copy.value);
    self()->copies.push_back(copy);
}

void emulate_commit_copies(void)
{
    self()->copy_group++;
}

void emulate_land_copies(int groups_left)
{
    struct fibre *f = self();
    size_t kept = 0;

    for (const struct later &copy : f->copies) {
        if (copy.group + (uint32_t)groups_left < f->copy_group)
            memcpy(copy.to, &copy.value, sizeof copy.value);
        else
            f->copies[kept++] = copy;
    }
    f->copies.resize(kept);
}
