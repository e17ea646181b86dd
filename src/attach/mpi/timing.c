/* SPDX-License-Identifier: Apache-2.0 */
/* What came between, and how long calls took: of all communicators. */
#include "attach_mpi.h"

#include <stdatomic.h>

static _Atomic uint64_t marks;
static _Atomic uint64_t waits_ns;
static _Atomic int timing_count;

uint64_t msdu__stream_marks(void)
{
    return atomic_load_explicit(&marks, memory_order_relaxed);
}

void msdu__stream_mark(void)
{
    (void)atomic_fetch_add_explicit(&marks, 1, memory_order_relaxed);
}

uint64_t msdu__stream_waits(void)
{
    return atomic_load_explicit(&waits_ns, memory_order_relaxed);
}

void msdu__stream_time(int more)
{
    (void)atomic_fetch_add_explicit(&timing_count, more, memory_order_relaxed);
}

bool msdu__stream_is_timing(void)
{
    return atomic_load_explicit(&timing_count, memory_order_relaxed) > 0;
}

void msdu__stream_waited(uint64_t time_ns)
{
    (void)atomic_fetch_add_explicit(&waits_ns, time_ns, memory_order_relaxed);
}
