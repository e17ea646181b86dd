/* SPDX-License-Identifier: Apache-2.0 */
/* How near a mistyped name is to a known one. */
#ifndef MSDU_CONFIG_NAME_H
#define MSDU_CONFIG_NAME_H

#include <stddef.h>

/* Levenshtein distance; SIZE_MAX for names of 64 bytes and more, which are not meant. */
size_t msdu__name_distance(const char *a, const char *b);

#endif
