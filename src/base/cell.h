/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values that threads share without a lock: the only atomics beside those of core/ready.c. All
 * operations are sequentially consistent; what is written before a cell is set is seen by who reads
 * that value from it.
 */
#ifndef MSDU_CELL_H
#define MSDU_CELL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A counter, a time, a number. */
typedef struct msdu__cell {
    _Atomic uint64_t value;
} msdu__cell;

static inline uint64_t msdu__cell_get(const msdu__cell *cell)
{
    return atomic_load(&cell->value);
}

static inline void msdu__cell_set(msdu__cell *cell, uint64_t value)
{
    atomic_store(&cell->value, value);
}

/* These two return what was there before. A negative amount wraps, as unsigned numbers do. */
static inline uint64_t msdu__cell_add(msdu__cell *cell, uint64_t amount)
{
    return atomic_fetch_add(&cell->value, amount);
}

static inline uint64_t msdu__cell_swap(msdu__cell *cell, uint64_t value)
{
    return atomic_exchange(&cell->value, value);
}

/* From one value to another; false, and nothing done, if it had a third. */
static inline bool msdu__cell_change(msdu__cell *cell, uint64_t from, uint64_t to)
{
    return atomic_compare_exchange_strong(&cell->value, &from, to);
}

/* Sets these bits. */
static inline void msdu__cell_mark(msdu__cell *cell, uint64_t bits)
{
    atomic_fetch_or(&cell->value, bits);
}

typedef struct msdu__number {
    _Atomic double value;
} msdu__number;

static inline double msdu__number_get(const msdu__number *cell)
{
    return atomic_load(&cell->value);
}

static inline void msdu__number_set(msdu__number *cell, double value)
{
    atomic_store(&cell->value, value);
}

typedef struct msdu__flag {
    _Atomic bool value;
} msdu__flag;

static inline bool msdu__flag_get(const msdu__flag *flag)
{
    return atomic_load(&flag->value);
}

static inline void msdu__flag_set(msdu__flag *flag, bool value)
{
    atomic_store(&flag->value, value);
}

/* Returns what it was before. */
static inline bool msdu__flag_swap(msdu__flag *flag, bool value)
{
    return atomic_exchange(&flag->value, value);
}

#endif
