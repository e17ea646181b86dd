/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that take turns on cores. */
#ifndef MSDU_CORES_H
#define MSDU_CORES_H

#include "engine.h"

/* Of what the API thread waited since the last statistics message of `f`, at most: what left a core
 * of this host idle. Communication thread; once for each message. */
double msdu__cores_alone(const msdu__engine *e, msdu__fragment *f, double waited_ns);
/* Share of a round's processor time that the trainer lacks (interval/cost.h), by what its computing
 * kept busy since the last statistics message of `f`, in which it waited for `waited_ns`. As above.
 */
double msdu__cores_taken(const msdu__engine *e, msdu__fragment *f, double waited_ns);
/* How long the calling thread was ready to run and waited for a core, since it began; 0: not told.
 */
uint64_t msdu__cores_queued_ns(void);
uint64_t msdu__cores_thread_ns(void); /* processor time of the calling thread */

typedef struct msdu__place_name {
    uint64_t host; /* 0: not known */
    uint64_t process;
    uint64_t network; /* name of its network namespace; 0: not known */
    uint64_t cores;   /* name of the set that it may use, on this host */
    double count;     /* of these: less than whole ones where a container has a quota */
} msdu__place_name;
msdu__place_name msdu__cores_name(void); /* of the calling process */
/* From the names of all ranks: do those of this host outnumber its cores? Who may use the same? */
void msdu__cores_count(msdu__engine *e, const msdu__place_name *names);
/* Part of `time_ns` in which a hypervisor had taken at least one core, if it takes each by chance:
 * ranks on the other cores then wait for the one there. `stolen_ns`: sum over all cores. */
double msdu__cores_halted_ns(long cores, double time_ns, double stolen_ns);

#endif
