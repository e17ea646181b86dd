/* SPDX-License-Identifier: Apache-2.0 */
/* Files of JSON: found, loaded, parsed, and refused in one line. */
#ifndef MSDU_PREDICT_JSON_FILE_H
#define MSDU_PREDICT_JSON_FILE_H

#include <stdbool.h>
#include <stddef.h>

#define MSDU__JSON_FILE_MAX (16U << 20) /* bytes; larger files are refused unread */

struct cJSON;

/* A text becomes what `out` points at; false: why holds one line. */
typedef bool (*msdu__json_reader)(const char *text, size_t bytes, void *out, char *why,
                                  size_t why_bytes);

/* Read a file by a reader, whose line is put behind the file's name. False: why holds one line,
 * which says of a file too large that it is no `what`. */
bool msdu__json_read(const char *path, const char *what, msdu__json_reader reader, void *out,
                     char *why, size_t why_bytes);
/* To be freed by cJSON_Delete(); NULL: why holds one line. */
struct cJSON *msdu__json_parse(const char *text, size_t bytes, char *why, size_t why_bytes);
/* why <- the formatted line */
void msdu__json_refuse(char *why, size_t why_bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
