/* SPDX-License-Identifier: Apache-2.0 */
/* Files of JSON, before they are parsed. */
#ifndef MSDU_PREDICT_JSON_FILE_H
#define MSDU_PREDICT_JSON_FILE_H

#include <stddef.h>

#define MSDU__JSON_FILE_MAX (16U << 20) /* bytes; larger files are refused unread */

/* The whole file, to be freed; it has no zero at its end. NULL: why holds one line, which says that
 * a file too large is no `what`. */
char *msdu__json_load(const char *path, const char *what, size_t *bytes_out, char *why,
                      size_t why_bytes);
/* Number of the line in which `end` stands. */
unsigned msdu__json_line(const char *text, const char *end);

#endif
