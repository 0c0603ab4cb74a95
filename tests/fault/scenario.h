/* What the fault tests do over and over: a small picture of shoal-mini in little memory. */
#ifndef TESTS_FAULT_SCENARIO_H
#define TESTS_FAULT_SCENARIO_H

#include "support.h"

#include "shoal/shoal.h"

#define SCENARIO_MODEL "models/shoal-mini"

/* How many times fewer cases a slow build runs: the release build runs them all. */
#if defined(__SANITIZE_THREAD__)
#define SCENARIO_THINNER 20
#elif defined(__SANITIZE_ADDRESS__)
#define SCENARIO_THINNER 4
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define SCENARIO_THINNER 20
#endif
#endif
#ifndef SCENARIO_THINNER
#define SCENARIO_THINNER 1
#endif

/* 16 x 16 pixels, one step, two lanes, 2 threads. */
struct shoal_request scenario_request(const struct shoal_model *model);

/* Sets the least device memory that works and then the least host memory. */
void scenario_least(const struct shoal_model *model, struct shoal_request *request);

struct shoal_model *scenario_model(void);
struct shoal_plan *scenario_plan(
    const struct shoal_model *model, const struct shoal_request *request);

/* FNV-1a over latents and pixels of every picture. */
uint64_t scenario_hash(const struct shoal_result *result);

/* A failure as it should be: its own status, a sentence, where it arose. Fails the test if not. */
void assert_clean_failure(enum shoal_status status, const struct shoal_error *error);

/* ---- the watchdog: a test that hangs ends with a message ---- */

/* What follows, called `what`, may take `seconds`. */
void watchdog_set(const char *what, unsigned seconds);
void watchdog_clear(void);

#endif
