/* JSON without running out of memory unnoticed, as inside jansson one may. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* Why json_loadb of this text failed: for want of memory, or because of the text. */
bool json_ran_out_of_memory(const json_error_t *cause, const char *text, size_t bytes);

/*
 * Host memory that json_loadb takes of a text at the most, without the text's own; which it need
 * not be able to parse. From what it holds, because a byte may be worth eighty: of "{},{},{}".
 */
uint64_t json_load_bytes(const char *text, size_t bytes);

/* Add a value, which is taken over, or set *failed: out of memory, as a value that is NULL says. */
void json_append(json_t *array, json_t *value, bool *failed);
void json_put(json_t *object, const char *key, json_t *value, bool *failed);

/*
 * The text of `json`, indented, for the caller to mem_free; NULL when out of memory or if `json` is
 * NULL. (json_dumps may leave out a piece when it runs out of memory.)
 */
char *json_print(const json_t *json);
char *json_print_compact(const json_t *json); /* the same on one line */

#endif
