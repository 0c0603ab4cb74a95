/*
 * Signals end the program, or become a flag. Not cleaning up: the library leaves nothing behind
 * when it is cancelled, and what is ended at once has made nothing.
 */
#include "interrupt.h"

#include "cli.h"

#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t caught, deferred;

static void handle(int number)
{
    static const char text[] = "shoal: error: interrupted\n";

    caught = number;
    if (deferred) return;
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    _exit(128 + number);
}

void interrupt_install(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        /* SA_RESETHAND: the second signal finds the default action and ends the process. */
        struct sigaction action = {
            .sa_handler = handle, .sa_flags = (int)(SA_RESETHAND | SA_RESTART)};
        struct sigaction before;

        /* A shell's background job, or one under nohup, has them ignored for a reason. */
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler == SIG_IGN) continue;
        sigemptyset(&action.sa_mask);
        sigaction(numbers[i], &action, NULL);
    }
}

void interrupt_defer(bool defer)
{
    deferred = defer;
}

bool interrupt_requested(void *user)
{
    (void)user;
    return caught != 0;
}

int interrupt_exit_code(void)
{
    return caught ? 128 + caught : CLI_INTERRUPTED;
}
