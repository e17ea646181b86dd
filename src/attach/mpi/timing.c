/* SPDX-License-Identifier: Apache-2.0 */
/* What came between, and how long calls took: of all communicators. */
#include "attach_mpi.h"

#include "base/cell.h"

static msdu__cell marks;
static msdu__cell waits_ns;
static msdu__cell timing_count;

uint64_t msdu__stream_marks(void)
{
    return msdu__cell_get(&marks);
}

void msdu__stream_mark(void)
{
    (void)msdu__cell_add(&marks, 1);
}

uint64_t msdu__stream_waits(void)
{
    return msdu__cell_get(&waits_ns);
}

void msdu__stream_time(int more)
{
    (void)msdu__cell_add(&timing_count, (uint64_t)more);
}

bool msdu__stream_is_timing(void)
{
    return (int64_t)msdu__cell_get(&timing_count) > 0;
}

void msdu__stream_waited(uint64_t time_ns)
{
    (void)msdu__cell_add(&waits_ns, time_ns);
}
