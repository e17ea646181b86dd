/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prediction: a model profile and a method of `msdu bench overlap` on a network -> time of a step,
 * bytes, and the bound. The library's slicer cuts and its plan code orders; simulate.h runs. No
 * I/O, no clock; allocates.
 */
#ifndef MSDU_WHATIF_PREDICT_H
#define MSDU_WHATIF_PREDICT_H

#include "bound.h"
#include "methods.h"
#include "network.h"
#include "profile.h"
#include "wire/cost.h"

typedef struct msdu__whatif_question {
    const msdu__profile *profile; /* borrowed */
    msdu__whatif_network network;
    double scale;         /* of the profile, for the default sizes of slices and buckets */
    uint64_t slice_bytes; /* 0: as `msdu bench overlap` has it */
    uint32_t interval;    /* h of local steps */
    double slice_ns;      /* of the communication thread with each slice, beside passes over it */
    double pass_factor;   /* time of the communication thread's passes: times what was measured */
    double slowness;      /* time of the profile's computing: times what it says; 0: 1 */
    double taken_share; /* of what rounds cost a processor: time that computing is longer for it */
    const msdu__wire_costs *costs; /* of coding; NULL: of a server */
} msdu__whatif_question;

/* How a method is run. */
typedef struct msdu__whatif_way {
    const msdu__overlap_method *method;
    uint32_t interval;
    uint32_t delay;
    int wire;
} msdu__whatif_way;

typedef struct msdu__whatif_answer {
    double step_ns;
    double compute_ns;
    double bound_ns;
    double exposed_share; /* 1 - compute / step */
    double bytes;         /* a rank sends in a step */
    double link_ns;       /* the link is in use, a round */
    double wait_ns;       /* of the API thread, a step */
    double taken_ns;      /* of a step, from computing: no core was idle (interval/cost.h) */
    uint32_t slices;
    bool has_renewed; /* the plan's order became another than the slicer's */
} msdu__whatif_answer;

/* What passes over elements take, in ns an element: the question's costs, times its factor. */
msdu__wire_costs msdu__whatif_costs(const msdu__whatif_question *question);
/* Costs of the processor that this runs on. */
const msdu__wire_costs *msdu__whatif_costs_here(void);

/* What the method has by itself, with the question's interval. */
msdu__whatif_way msdu__whatif_way_of(const msdu__whatif_question *question,
                                     const msdu__overlap_method *method);
/* False: no memory, or a slice count that is too large; why holds one line. */
bool msdu__whatif_predict(const msdu__whatif_question *question, const msdu__whatif_way *way,
                          msdu__whatif_answer *answer, char *why, size_t why_bytes);

#endif
