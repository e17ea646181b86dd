/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of attaching, MSDU_ATTACH_*, which are read from the environment alone. */
#ifndef MSDU_ATTACH_SETTINGS_H
#define MSDU_ATTACH_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

uint64_t msdu__attach_number(const char *name, uint64_t otherwise);
/* May a reduction of so many elements be a gradient (MSDU_ATTACH_ALLOW, MSDU_ATTACH_DENY)? */
bool msdu__attach_is_allowed(uint64_t count);
/* Shall what was recognized, and the summary, be told (MSDU_LOG is not "error")? */
bool msdu__attach_is_loud(void);

#endif
