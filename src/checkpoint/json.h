/* JSON of checkpoints: strict parsing, and text from hostile files made fit for messages. */
#ifndef CHECKPOINT_JSON_H
#define CHECKPOINT_JSON_H

#include "base/error.h"
#include "base/json.h"

/*
 * One JSON object: UTF-8, no duplicate keys, nothing after it. `what` names the text in messages,
 * e.g. "the header". *object is the caller's to json_decref.
 */
enum shoal_status json_parse_object(const char *path, const char *what, const char *text,
    size_t bytes, json_t **object, struct shoal_error *error) SHOAL_CHECKED;

/* The same from a file of settings: a few kilobytes. SHOAL_E_FORMAT if reading it would take more
 * than a megabyte of host memory, which no plan has charged. */
enum shoal_status json_read_settings(
    const char *path, json_t **object, struct shoal_error *error) SHOAL_CHECKED;

/* A JSON string of any bytes: what is not UTF-8 becomes '?'. NULL when out of memory. */
json_t *json_text(const char *text);

/* Whether `text` has control characters, which would reach terminals through messages. */
bool json_has_controls(const char *text);

/* `text` cut to fit and without control characters: into `shown`, which is returned. */
#define JSON_SHOWN_BYTES 160
char *json_show(char shown[JSON_SHOWN_BYTES], const char *text);

#endif
