/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values to bytes and back, little-endian and by one description for both directions: the function
 * that lists what is in a state writes it, measures it, checks it and reads it. Pure: no I/O,
 * locks, clock, allocation, globals.
 */
#ifndef MSDU_SERIAL_H
#define MSDU_SERIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct msdu__serial {
    unsigned char *out;      /* writing; NULL: only measure */
    const unsigned char *in; /* reading; NULL: writing */
    uint64_t bytes;          /* of out or in */
    uint64_t at;
    bool is_dry;     /* reading: values are read and checked, arrays are passed over */
    const char *bad; /* reading: name of the first value that cannot be; NULL: none so far */
} msdu__serial;

/* A whole number; reading one that is not least .. most is an error and leaves *value. */
void msdu__serial_whole(msdu__serial *c, const char *name, uint64_t *value, uint64_t least,
                        uint64_t most);
void msdu__serial_flag(msdu__serial *c, const char *name, bool *value);
void msdu__serial_real(msdu__serial *c, const char *name, double *value);
/* A measure such as a time: reading one that is not 0 .. 1e18 is an error and leaves *value. */
void msdu__serial_measure(msdu__serial *c, const char *name, double *value);
/* A few elements, read in a dry pass too; width as below. */
void msdu__serial_values(msdu__serial *c, const char *name, void *values, uint64_t count,
                         uint32_t width);
/* count elements of width bytes: 1, 4 or 8. */
void msdu__serial_array(msdu__serial *c, const char *name, void *array, uint64_t count,
                        uint32_t width);

/* Checksum; every change of a single aligned word shows. */
uint64_t msdu__serial_hash(const void *data, uint64_t bytes);
/* Goes on with a hash; only the last piece may end within a word. */
uint64_t msdu__serial_hash_more(uint64_t hash, const void *data, uint64_t bytes);

#endif
