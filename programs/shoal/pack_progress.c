/* Drawing the progress of packing; every figure comes from the library. */
#include "pack_progress.h"

#include "progress.h"

#define REDRAW_SECONDS 0.05

void pack_progress_start(struct pack_progress *progress, FILE *json, bool quiet)
{
    *progress = (struct pack_progress){
        .terminal = cli_is_terminal(stderr), .drawn_at = -1, .json = json, .quiet = quiet};
}

void pack_progress_update(void *user, const struct shoal_pack_progress *now)
{
    struct pack_progress *progress = user;
    double fraction = now->bytes ? (double)now->done_bytes / (double)now->bytes : 0;
    char left[120], right[96];

    if (!progress->terminal || now->seconds - progress->drawn_at < REDRAW_SECONDS) return;
    progress->drawn_at = now->seconds;
    snprintf(
        left, sizeof left, "%s of %s ", cli_size(now->done_bytes).text, cli_size(now->bytes).text);
    if (fraction > 0 && now->seconds >= 0.5)
        snprintf(right, sizeof right, "%.2f GB/s, %s left",
            1e-9 * (double)now->done_bytes / now->seconds,
            cli_seconds(now->seconds * (1 - fraction) / fraction).text);
    else
        right[0] = '\0';
    progress_draw(left, fraction, right);
}

static void print_json(const struct pack_progress *progress, const struct shoal_packed_part *part)
{
    FILE *stream = progress->json;

    fprintf(stream, "%s\n  {\"name\": ", progress->parts ? "," : "");
    cli_json_string(stream, part->name);
    fprintf(stream,
        ", \"tensors\": %llu, \"packed_tensors\": %llu, \"bytes\": %llu, "
        "\"written_bytes\": %llu, \"seconds\": %.6f}",
        (unsigned long long)part->tensors, (unsigned long long)part->packed_tensors,
        (unsigned long long)part->bytes, (unsigned long long)part->written_bytes, part->seconds);
}

void pack_progress_written(void *user, const struct shoal_packed_part *part)
{
    struct pack_progress *progress = user;
    FILE *stream = progress->quiet ? stderr : stdout;

    progress_clear();
    if (progress->json) {
        print_json(progress, part);
    } else {
        cli_print_clean(stream, part->name);
        fprintf(stream, ": %s in %s (%.3f), %llu of %llu tensors packed, %s, %.2f GB/s\n",
            cli_size(part->bytes).text, cli_size(part->written_bytes).text,
            part->bytes ? (double)part->written_bytes / (double)part->bytes : 1,
            (unsigned long long)part->packed_tensors, (unsigned long long)part->tensors,
            cli_seconds(part->seconds).text,
            part->seconds > 0 ? 1e-9 * (double)part->bytes / part->seconds : 0);
        fflush(stream);
    }
    progress->parts++;
    progress->bytes += part->bytes;
    progress->written_bytes += part->written_bytes;
    progress->seconds += part->seconds;
}

void pack_progress_waiting(void *user, const char *path)
{
    (void)user;
    progress_clear();
    fputs("waiting for another shoal that writes ", stderr);
    cli_print_clean(stderr, path);
    fputc('\n', stderr);
}
