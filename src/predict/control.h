/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The controller of a what-if: the library's own policy, with the library's own arguments from its
 * settings, decides round by round on statistics of a simulated run (predict.h). Allocates.
 *
 * What no simulation of a network can know is how far ranks drift apart. It is made up: a round's
 * pseudo-gradient is noise, so its energy is shared by all ranks as 1 / N, and grows as h^1.5,
 * between a random walk and momentum that carries on. The policy's error budget is relative to the
 * drift it measures, so the scale does not matter. A real run may allow more, or less.
 */
#ifndef MSDU_WHATIF_CONTROL_H
#define MSDU_WHATIF_CONTROL_H

#include "interval/interval.h"
#include "predict.h"

typedef struct msdu__whatif_wish {
    const char *settings; /* lines of an ini file; NULL: defaults. The environment wins */
    bool is_sgd;          /* as optimizer = sgd in `settings` */
    uint32_t from_step;   /* steps whose mean time is wanted */
    uint32_t until_step;
} msdu__whatif_wish;

typedef struct msdu__whatif_choice {
    msdu__whatif_way way;
    uint64_t step; /* since which it stands */
    char reason[96];
    msdu__whatif_answer answer; /* of steps under it */
    double window_ns;           /* mean time of the steps asked for */
    double window_bytes;
} msdu__whatif_choice;

bool msdu__whatif_control(const msdu__whatif_question *question, const msdu__whatif_wish *wish,
                          msdu__whatif_choice *choice, char *why, size_t why_bytes);

#endif
