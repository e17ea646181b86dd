/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A number of the gradients that a rank was given out, for MSDU_ATTACH_GUARD: only equality counts.
 * Ranks may be given them in different orders, so the numbers of gradients are summed. Pure.
 */
#ifndef MSDU_GIVEN_H
#define MSDU_GIVEN_H

#include <stdint.h>

/* Of gradient `at`: begin, add its memory from front to back, end. All pieces but the last are
 * whole words of 4 bytes. */
uint64_t msdu__given_begin(uint32_t at);
uint64_t msdu__given_add(uint64_t number, const void *data, uint64_t bytes);
uint64_t msdu__given_end(uint64_t number);

#endif
