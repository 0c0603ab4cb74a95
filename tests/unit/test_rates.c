/* Rates: cards, guesses, and files that lie. */
#include "support.h"

#include "base/file.h"
#include "plan/rates.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PATH "test_rates.json"

static void write_text(const char *text)
{
    struct shoal_error error = {0};

    assert_ok(file_write_whole(PATH, text, strlen(text), &error));
}

static void test_seconds(void **state)
{
    const struct rates rates = {
        .flops = {100, 50, 25}, .weight_bytes = 20, .memory_bytes = 10, .call_seconds = 0.25};
    const struct work work = {.operations = {200, 50, 25}, .weights = 0, .traffic = 5, .calls = 2};

    (void)state;
    assert_true(fabs(rates_seconds(&rates, &work) - 5) < 1e-12);
}

static void test_guess(void **state)
{
    struct rates one, four, none;

    (void)state;
    rates_guess(&one, 1);
    rates_guess(&four, 4);
    rates_guess(&none, 0);
    assert_int_equal(one.origin, RATES_GUESSED);
    assert_true(four.flops[WORK_LINEAR] == 4 * one.flops[WORK_LINEAR]);
    assert_true(none.flops[WORK_LINEAR] == one.flops[WORK_LINEAR]);
}

static void test_cards(void **state)
{
    static const struct {
        const char *name;
        double gib, link, linear; /* about */
    } cards[] = {
        {"rtx3060", 12, 27.7e9, 20.4e12},
        {"rtx4060", 8, 13.9e9, 24.2e12},
        {"rtx4090", 24, 27.7e9, 132e12},
        {"rtx5090", 32, 55.4e9, 168e12},
        {"l4", 24, 27.7e9, 60.5e12},
        {"h200", 131, 55.4e9, 791e12},
    };
    struct shoal_error error = {0};
    struct rates rates;

    (void)state;
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) {
        assert_ok(rates_of_card(cards[i].name, &rates, &error));
        assert_string_equal(rates.name, cards[i].name);
        assert_int_equal(rates.origin, RATES_PUBLISHED);
        assert_true(fabs((double)rates.vram_bytes / (cards[i].gib * 0x1p30) - 1) < 0.01);
        assert_true(fabs(rates.link_bytes / cards[i].link - 1) < 0.01);
        assert_true(fabs(rates.flops[WORK_LINEAR] / cards[i].linear - 1) < 0.01);
        assert_true(rates.unpack_bytes > rates.link_bytes);
    }
    assert_in_range(rates.context_bytes, (uint64_t)590 << 20, (uint64_t)598 << 20); /* BENCH.md */
    assert_int_equal(rates_of_card("rtx9999", &rates, &error), SHOAL_E_INVALID);
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++)
        assert_non_null(strstr(error.text, cards[i].name));
}

static void test_guessed_cards(void **state)
{
    static const char *const cards[][2] = {{"NVIDIA GeForce RTX 4060 Laptop GPU", "rtx4060"},
        {"NVIDIA GeForce RTX 5090", "rtx5090"}, {"NVIDIA H200", "h200"}, {"NVIDIA L4", "l4"},
        {"NVIDIA L40S", "rtx3060"}, {"Quadro T2000", "rtx3060"}};
    struct shoal_error error = {0};

    (void)state;
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) {
        struct rates guessed, published;

        rates_guess_card(&guessed, cards[i][0], 4);
        assert_ok(rates_of_card(cards[i][1], &published, &error));
        assert_int_equal(guessed.origin, RATES_GUESSED);
        assert_string_equal(guessed.name, "this machine");
        assert_true(guessed.flops[WORK_LINEAR] == published.flops[WORK_LINEAR]);
        assert_true(guessed.link_bytes == published.link_bytes);
        assert_true(guessed.pack_bytes == 4e9);
        assert_true(guessed.unpinned_bytes == 7e9 && guessed.bounce_bytes == 14e9);
    }
}

/* Every rate survives to the bit. */
static void test_round_trip(void **state)
{
    struct shoal_error error = {0};
    struct rates written, read;

    (void)state;
    assert_ok(rates_of_card("rtx3060", &written, &error));
    written.origin = RATES_MEASURED;
    written.link_bytes = 1e9 / 3;
    written.unpinned_bytes = 7e9;
    written.bounce_bytes = 14e9;
    written.copy_tax = 0;
    written.read_tax = 0.1 / 3;
    written.threads = 3;
    written.context_bytes = 123456789;
    assert_ok(rates_write(PATH, &written, &error));
    memset(&read, 0x55, sizeof read);
    assert_ok(rates_read(PATH, &read, &error));
    assert_string_equal(read.name, written.name);
    assert_int_equal(read.origin, written.origin);
    for (int i = 0; i < WORK_KINDS; i++)
        assert_true(read.flops[i] == written.flops[i]);
    assert_true(read.weight_bytes == written.weight_bytes);
    assert_true(read.memory_bytes == written.memory_bytes);
    assert_true(read.call_seconds == written.call_seconds);
    assert_true(read.link_bytes == written.link_bytes);
    assert_true(read.unpinned_bytes == 7e9 && read.bounce_bytes == 14e9);
    assert_true(read.disk_bytes == written.disk_bytes);
    assert_true(read.disk_sequential_bytes == written.disk_sequential_bytes);
    assert_true(read.unpack_bytes == written.unpack_bytes);
    assert_true(read.pack_bytes == written.pack_bytes);
    assert_true(read.copy_tax == written.copy_tax && read.read_tax == written.read_tax);
    assert_int_equal(read.threads, 3);
    assert_int_equal(read.vram_bytes, written.vram_bytes);
    assert_int_equal(read.context_bytes, written.context_bytes);
}

static const char *const lines[] = {
    "\"version\": 4",
    "\"name\": \"card\"",
    "\"origin\": \"measured\"",
    "\"linear_flops\": 1e12",
    "\"attention_flops\": 1000000000000",
    "\"conv_flops\": 1e12",
    "\"weight_bytes\": 1e11",
    "\"memory_bytes\": 1e11",
    "\"link_bytes\": 1e10",
    "\"unpinned_bytes\": 1e9",
    "\"bounce_bytes\": 5e9",
    "\"disk_bytes\": 1e9",
    "\"disk_sequential_bytes\": 1e9",
    "\"unpack_bytes\": 1e11",
    "\"pack_bytes\": 1e10",
    "\"copy_tax\": 0.05",
    "\"read_tax\": 0.07",
    "\"threads\": 2",
    "\"vram_bytes\": 8589934592",
    "\"context_bytes\": 0",
    "\"call_seconds\": 1e-6",
};
#define LINES (sizeof lines / sizeof *lines)

/* The file above with one line left out, or another one in its place or added. */
static void write_lines(size_t skip, const char *other)
{
    char text[2048] = "{";

    for (size_t i = 0; i < LINES; i++) {
        if (i == skip) continue;
        if (text[1]) strcat(text, ",\n");
        strcat(text, lines[i]);
    }
    if (other) strcat(strcat(text, ",\n"), other);
    strcat(text, "}");
    write_text(text);
}

static void test_members(void **state)
{
    struct shoal_error error = {0};
    struct rates rates;

    (void)state;
    write_lines(LINES, NULL);
    assert_ok(rates_read(PATH, &rates, &error));
    assert_true(
        rates.flops[WORK_ATTENTION] == 1e12 && rates.copy_tax == 0.05 && rates.read_tax == 0.07);
    /* Each must be there, and the message names file and member. */
    for (size_t i = 0; i < LINES; i++) {
        char name[32] = "";

        sscanf(lines[i], "\"%31[a-z_]\"", name);
        write_lines(i, NULL);
        assert_int_equal(rates_read(PATH, &rates, &error), SHOAL_E_FORMAT);
        assert_non_null(strstr(error.text, name));
        assert_non_null(strstr(error.text, PATH));
    }
}

static void test_hostile_members(void **state)
{
    static const struct {
        size_t line;
        const char *instead, *names;
    } cases[] = {
        {LINES, "\"lnik_bytes\": 1e9", "lnik_bytes"},
        {LINES, "\"\\u001b[31m\": 1", "?[31m"},
        {LINES, "\"link_bytes\": 1e9", "JSON"}, /* twice */
        {0, "\"version\": \"1\"", "version"},
        {1, "\"name\": \"\"", "name"},
        {1, "\"name\": 7", "name"},
        {1, "\"name\": \"\\u001b[31mred\"", "name"},
        {1, "\"name\": \"a name of more than sixty-three characters, which does not fit in here\"",
            "name"},
        {2, "\"origin\": \"heaven\"", "origin"},
        {2, "\"origin\": null", "origin"},
        {8, "\"link_bytes\": 0", "link_bytes"},
        {8, "\"link_bytes\": -1", "link_bytes"},
        {8, "\"link_bytes\": 1e19", "link_bytes"},
        {8, "\"link_bytes\": 1e999", "JSON"},
        {8, "\"link_bytes\": \"fast\"", "link_bytes"},
        {8, "\"link_bytes\": [1]", "link_bytes"},
        {8, "\"link_bytes\": NaN", "JSON"},
        {15, "\"copy_tax\": -0.01", "copy_tax"},
        {15, "\"copy_tax\": 101", "copy_tax"},
        {17, "\"threads\": -1", "threads"},
        {20, "\"call_seconds\": 1.5", "call_seconds"},
        {20, "\"call_seconds\": -1e-6", "call_seconds"},
        {18, "\"vram_bytes\": 1.5", "vram_bytes"},
        {18, "\"vram_bytes\": -1", "vram_bytes"},
        {18, "\"vram_bytes\": 99999999999999999999", "JSON"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct shoal_error error = {0};
        struct rates rates = {.name = "before"};

        write_lines(cases[i].line, cases[i].instead);
        assert_int_equal(rates_read(PATH, &rates, &error), SHOAL_E_FORMAT);
        if (!strstr(error.text, cases[i].names)) fail_msg("%s: %s", cases[i].instead, error.text);
        assert_string_equal(rates.name, "before"); /* untouched */
    }
}

/* Whatever else there is: another version has other members. */
static void test_other_versions(void **state)
{
    static const char *const texts[] = {"{\"version\": 1}", "{\"version\": 5, \"name\": 7}"};
    struct shoal_error error = {0};
    struct rates rates = {.name = "before"};

    (void)state;
    write_lines(0, "\"version\": 1");
    assert_int_equal(rates_read(PATH, &rates, &error), SHOAL_E_MISSING);
    assert_non_null(strstr(error.text, "bench links"));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_text(texts[i]);
        assert_int_equal(rates_read(PATH, &rates, &error), SHOAL_E_MISSING);
    }
    assert_string_equal(rates.name, "before"); /* untouched */
}

static void test_hostile_files(void **state)
{
    static const char *const texts[] = {"", "{", "[]", "7", "null", "{}"};
    struct shoal_error error = {0};
    struct rates rates;

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_text(texts[i]);
        assert_int_equal(rates_read(PATH, &rates, &error), SHOAL_E_FORMAT);
    }
    unlink(PATH);
    assert_int_equal(rates_read(PATH, &rates, &error), SHOAL_E_IO);
    assert_non_null(strstr(error.text, PATH));
}

static int in_own_folder(void **state)
{
    static char folder[] = "/tmp/test_rates_XXXXXX";

    *state = mkdtemp(folder);
    return *state ? chdir(*state) : -1;
}

static int leave_folder(void **state)
{
    unlink(PATH);
    return rmdir(*state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seconds),
        cmocka_unit_test(test_guess),
        cmocka_unit_test(test_cards),
        cmocka_unit_test(test_guessed_cards),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_members),
        cmocka_unit_test(test_hostile_members),
        cmocka_unit_test(test_other_versions),
        cmocka_unit_test(test_hostile_files),
    };

    return cmocka_run_group_tests(tests, in_own_folder, leave_folder);
}
