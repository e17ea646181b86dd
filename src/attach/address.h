/* SPDX-License-Identifier: Apache-2.0 */
/* Where ranks on several hosts meet, and what keeps others out. */
#ifndef MSDU_ATTACH_ADDRESS_H
#define MSDU_ATTACH_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

/* The first address that other hosts may reach, on the interface that is asked for. */
bool msdu__address_find(char *text, size_t bytes);

/* As many random hexadecimal digits, with a zero behind; false: the system gives no random numbers,
 * and the text is empty. An even number, at most 64. */
bool msdu__address_secret(char *text, size_t digits);

#endif
