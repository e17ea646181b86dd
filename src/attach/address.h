/* SPDX-License-Identifier: Apache-2.0 */
/* Where ranks on several hosts meet, and what keeps others out. */
#ifndef MSDU_ATTACH_ADDRESS_H
#define MSDU_ATTACH_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

/* The first address that other hosts may reach, on the interface that is asked for. */
bool msdu__address_find(char *text, size_t bytes);

/*
 * A port that no other program is given while the handle is open, and that the hub may bind all the
 * same (both say SO_REUSEADDR, and this one never listens). Returns the handle, which the caller
 * closes; -1: there is none.
 */
int msdu__address_reserve(int *port_out);

/* As many random hexadecimal digits, with a zero behind; false: the system gives no random numbers,
 * and the text is empty. An even number, at most 64. */
bool msdu__address_secret(char *text, size_t digits);

#endif
