/* SPDX-License-Identifier: Apache-2.0 */
/* A number of the gradients that a rank was given out: FNV-1a, 4 bytes at a time, mixed at the end.
 */
#include "given.h"

#include <string.h>

#define HASH_SEED  14695981039346656037U
#define HASH_PRIME 1099511628211U

uint64_t msdu__given_begin(uint32_t at)
{
    return (HASH_SEED ^ at) * HASH_PRIME;
}

uint64_t msdu__given_add(uint64_t number, const void *data, uint64_t bytes)
{
    const unsigned char *from = data;
    for (uint64_t i = 0; i < bytes; i += sizeof(uint32_t)) {
        uint32_t word = 0; /* of 16 bits the last may be half a word */
        memcpy(&word, from + i, bytes - i < sizeof(word) ? bytes - i : sizeof(word));
        number = (number ^ word) * HASH_PRIME;
    }
    return number;
}

uint64_t msdu__given_end(uint64_t number)
{
    number = (number ^ (number >> 32)) * HASH_PRIME;
    return number ^ (number >> 29);
}
