/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The progress engine: ready -> capture -> plan -> start/test -> correct, one step at a time. All
 * of it is the communication thread's; before that runs, and after it has stood still, whoever
 * starts or ends the context may use it.
 */
#ifndef MSDU_ENGINE_H
#define MSDU_ENGINE_H

#include "fragment.h"
#include "handover.h"
#include "interval/deal.h"
#include "interval/ladder.h"
#include "slice.h"
#include "slicer/plan.h"

#define MSDU__WINDOW_MAX   64
#define MSDU__WINDOW_AUTO  4 /* where nothing is measured */
#define MSDU__WINDOW_TUNED 8 /* the tuner may go so far */
#define MSDU__LANES_MAX    8
#define MSDU__SMOOTH       0.2 /* weight of the newest measurement in running means */

/* Slices in issue order, a ring. Positions count since the start. */
typedef struct msdu__queue {
    uint32_t *slices;
    uint64_t mask;
    uint64_t tail;
    uint64_t first;  /* next to start */
    uint64_t outer;  /* two levels: next to leave this host; else as `first` */
    uint64_t second; /* next whose all-gather may start */
    uint64_t spread; /* two levels: next to be given to this host; else as `second` */
    uint64_t oldest; /* oldest not reduced */
} msdu__queue;

/* Time on the link, as measured. */
typedef struct msdu__link {
    uint32_t in_flight;
    uint64_t flight_began_ns;
    double now_ns; /* of the present round */
    double last_ns;
    uint64_t queued_ns;    /* the thread's time on a run queue, when the latest round ended; 0: none
                              did */
    double last_queued_ns; /* of that round */
    double coding_ns;      /* processor time of coding in the present round */
    double last_coding_ns;
    double latency_ns;
} msdu__link;

/* What choices cost the processor, as rounds tell it; equal on all ranks. */
typedef struct msdu__costs_told {
    double code_scale; /* coding, times what job->costs say; 0: not known */
    double taken_share;
} msdu__costs_told;

/* For replan.c. */
typedef struct msdu__plan_scratch {
    msdu__plan_item *items;
    uint32_t *marks;
    uint64_t *ends;
} msdu__plan_scratch;

/* Trace and metrics. */
typedef struct msdu__files {
    char metrics_path[MSDU__SETTING_BYTES];
    uint64_t metrics_due_ns;
    msdu__trace *trace;
} msdu__files;

/* Rounds by the clock, see tick.h. */
typedef struct msdu__ticks {
    bool is_on; /* rounds are by the clock */
    bool is_running;
    uint64_t tick_ns;    /* when the open round was due */
    double step_ns;      /* of the median rank; 0: not known of every rank */
    uint32_t missed;     /* rounds in a row */
    uint64_t missed_all; /* and since the start */
    double weight;       /* of this rank when it came last */
    uint64_t came_ns;    /* and when that was */
} msdu__ticks;

/* A rank as its messages tell it; pace.c. */
typedef struct msdu__rank_pace {
    double step_ns;      /* smoothed; 0: not told yet */
    double share;        /* of rounds, to which it came */
    double missed;       /* by its latest message */
    double told_step_ns; /* the latest line about it */
    double told_share;
} msdu__rank_pace;

/* How ranks of different speeds are met, see pace.h. */
typedef struct msdu__paces {
    msdu__ladder ladder;
    msdu__rank_pace *of; /* one per rank */
    double *times;       /* room for a number of each rank */
    double *late;        /* likewise */
    uint32_t heard;      /* rounds by the clock */
    bool is_told;        /* that ranks are uneven, where nothing may be done about it */
    bool is_warned;      /* that data of slow ranks count less */
} msdu__paces;

typedef struct msdu__engine {
    msdu__job *job;     /* written before the start only */
    msdu__model *model; /* likewise, and where slices are cut anew */
    msdu__handover *hand;
    msdu__run *runs;     /* by slice */
    msdu_sums *captured; /* sums of kernels by segment, as the capture found them */
    msdu_sums *applied;  /* and as the correction did */
    msdu__slot slots[MSDU__WINDOW_MAX];
    msdu__fragment fragments[MSDU__FRAGMENTS_MAX];
    uint32_t active[MSDU__FRAGMENTS_MAX]; /* open fragments in order of opening */
    uint32_t active_count;
    bool slices_are_whole; /* one fragment holds all slices (gradient domain) */
    msdu__queue queue;
    msdu__link link;
    msdu__costs_told costs;
    bool is_two_level;     /* see levels.h */
    uint64_t inside_bytes; /* given to ranks of this host */
    uint64_t channel_sequence[MSDU_GROUPS][2 * MSDU__LANES_MAX + 2];
    msdu__interval_state interval_state;
    msdu__decision decision; /* the latest */
    msdu__tuner tuner;
    msdu__tuning exact_tuning; /* what float32 had when the first narrow round was heard */
    bool was_compressed;       /* a narrow round was heard: cuts are the wire's, and not measured */
    uint64_t *control_shares;  /* sizeof(msdu__control) for every rank */
    msdu__files files;
    double norm_average;   /* clip: running norm of the mean pseudo-gradient */
    bool waits_for_device; /* a mark was not reached when last looked at */
    uint64_t backoff_ns;   /* backends that cannot notify */
    msdu__ticks ticks;
    msdu__paces paces;
    msdu__deal deal; /* work by the clock, see dealer.h */
    msdu__plan_scratch scratch;
    msdu__correct_args correct_args;
} msdu__engine;

static inline uint64_t msdu__engine_now(const msdu__engine *e)
{
    return msdu__job_now(e->job);
}

/* Statistics messages have a channel of their own, behind those of both phases of slices; plans the
 * next.
 */
static inline uint32_t msdu__control_channel(const msdu__engine *e)
{
    return (uint32_t)(2 * e->job->settings.lanes);
}

/* Owners of a slice's shares, and which of them this rank is. */
static inline int32_t msdu__outer_ranks(const msdu__engine *e)
{
    return e->is_two_level ? e->job->levels.hosts : e->job->ranks;
}

static inline int32_t msdu__outer_rank(const msdu__engine *e)
{
    return e->is_two_level ? e->job->levels.host : e->job->rank;
}

/* Where tensors and slices are. */
static inline uint32_t msdu__place(const msdu__job *job)
{
    return job->device != NULL ? MSDU_PLACE_DEVICE : MSDU_PLACE_HOST;
}

/* Slices of the fragment in whose round a slice is at present. */
static inline msdu__fragment *msdu__engine_fragment(msdu__engine *e, uint32_t slice)
{
    return &e->fragments[msdu__fragment_of(e->model, slice, e->slices_are_whole)];
}

/* Where the two threads meet for a round of this fragment. */
static inline msdu__mailbox *msdu__engine_mailbox(msdu__engine *e, const msdu__fragment *f)
{
    return &e->hand->fragments[f - e->fragments];
}

/* The answer to the round that is open. */
static inline msdu__answer *msdu__engine_answer(msdu__engine *e, const msdu__fragment *f)
{
    return &msdu__engine_mailbox(e, f)->answers[(f->opened - 1) & 1];
}

/* --- engine.c --- */
/* Start one backend operation on a channel. */
msdu_status msdu__engine_start(msdu__engine *e, msdu_op *op, uint32_t lane, msdu_req **req_out);
/* Test an operation of a group. */
msdu_status msdu__engine_test(const msdu__engine *e, uint32_t group, msdu_req *req);
/* ERR_TIMEOUT with text if an operation started then is past the deadline, else IN_PROGRESS. A
 * backend that knows the cause said so before; this is the last resort. */
msdu_status msdu__engine_overdue(msdu__engine *e, uint64_t since_ns, const char *what);
/* Give a slice back to its tensors' users. */
void msdu__engine_release(msdu__engine *e, uint32_t slice, msdu_what what);

#endif
