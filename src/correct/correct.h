/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Correction: what a rank does when the mean of a slice has arrived. Pure: no I/O, locks, clock,
 * allocation, globals. One file per rule; correct.c lists and chains them.
 *
 * Notation (algorithms: see src/DESIGN.md): w live parameters, A anchor (last agreed global
 * parameters), y snapshot of w when the round was captured, d mean pseudo-gradient A - mean(y)
 * ("descent positive"), u outer momentum. A chain is any number of shaping rules, each of which
 * rewrites d, and one merge rule at its end, which writes A and w:
 *     shape:  d <- rule(d, u)           clip, outer
 *     merge:  A <- A - d, w <- rule(A, w, y)   average, elastic, delayed, blend
 * Rules work on one chunk that stays in the first cache level, so a chain is one pass over memory.
 */
#ifndef MSDU_CORRECT_H
#define MSDU_CORRECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <msdu/device.h>
#include <msdu/msdu.h>

/* Elements of a chunk. With so few, loops that only touch the first cache level still overlap the
 * next chunk's memory traffic; 512 and more were slower by a quarter, 128 no faster (msdu bench
 * kernels). */
#define MSDU__CHUNK 256

/* What a rule needs beside w, A and d. */
enum {
    MSDU__NEEDS_MOMENTUM = 1, /* u: one working element per parameter, kept between rounds */
    MSDU__NEEDS_SNAPSHOT = 2, /* y: one working element per parameter while in flight */
    MSDU__NEEDS_NORM = 4,     /* |d| over all slices of the round before the first is applied */
};

/* Settings and round facts a chain needs; zeroed, then filled by src/core. */
typedef struct msdu__correct_args {
    double elastic_alpha;
    double outer_lr;
    double outer_momentum;
    bool outer_is_nesterov;
    double delayed_keep; /* rho */
    double clip_scale;   /* computed per round from the norms; 1: no clipping */
    uint32_t staleness;  /* steps between capture and now (tau) */
    int32_t groups;      /* ranks, or hosts where those of one average gradients in local steps */
} msdu__correct_args;

typedef struct msdu__rule {
    const char *name;
    const char *help; /* one line */
    unsigned needs;   /* MSDU__NEEDS_* */
    bool is_merge;
    /* The rule in numbers; is_prompt: there is no snapshot, y is w. */
    msdu_rule_step (*step)(const msdu__correct_args *args, bool is_prompt);
} msdu__rule;

typedef struct msdu__chain {
    const msdu__rule *rules[MSDU_RULES_MOST];
    uint32_t count;
    unsigned needs; /* union */
} msdu__chain;

/* The index-th rule, NULL past the last. */
const msdu__rule *msdu__rule_at(uint32_t index);
/*
 * Parse "clip,outer,delayed". Exactly one merge rule, at the end; if none is given, "average" is
 * added (or "delayed" if is_delayed). On error returns false and puts one line into why.
 */
bool msdu__chain_parse(const char *text, bool is_delayed, msdu__chain *chain_out, char *why,
                       size_t why_bytes);
/* What its rules do in a round, in numbers; is_prompt: the mean is applied at once. */
msdu_rules msdu__chain_numbers(const msdu__chain *chain, const msdu__correct_args *args,
                               bool is_prompt);
/* Would the chain, in exact arithmetic, leave every rank where it is if all captured the same? */
bool msdu__chain_keeps_equal(const msdu__chain *chain, const msdu__correct_args *args,
                             bool is_prompt);

/* Sums over a slice, in double. */
typedef struct msdu__sums {
    double update_sq; /* |d|^2 before shaping, or |local pseudo-gradient|^2 in capture */
    double weight_sq; /* |A|^2 (apply: new anchor; capture: old) */
    bool has_bad;     /* capture: a NaN or infinity was met */
    uint64_t hash;    /* capture: of param in working type; equal bits have the same */
} msdu__sums;

/*
 * Capture: update <- anchor - param (the local pseudo-gradient, in working type), snapshot <-
 * param if there is one, sums added to *sums. One pass over count elements of dtype.
 */
void msdu__correct_capture(const msdu_arrays *arrays, uint64_t count, int32_t dtype,
                           msdu__sums *sums);

/* Apply the rules to one slice; update is spent, sums are added to *sums. One pass. */
void msdu__correct_apply(const msdu_rules *rules, const msdu_arrays *arrays, uint64_t count,
                         int32_t dtype, msdu__sums *sums);

/* --- shift.c: rounds by the clock (src/core/tick.h) --- */

/* param (dtype) += shift (working type): what arrived since the trainer's last step. */
void msdu__shift_take(void *param, const void *shift, uint64_t count, int32_t dtype);
/* A mean has arrived while the trainer computes: anchor -= update, shift -= update, in working
 * type; dtype: any of a tensor with that. */
void msdu__shift_follow(void *anchor, void *shift, const void *update, uint64_t count,
                        int32_t dtype);

/* --- recursion.c: the accumulated-gradient domain --- */

/* The trainer's optimizer. */
typedef struct msdu__recursion_args {
    double lr;
    double momentum; /* mu */
    double factor;   /* f = 1 - dampening; 1 on the first call */
    double weight_decay;
    bool is_nesterov;
} msdu__recursion_args;

/* The coefficients of its loops. */
msdu_recursion msdu__recursion_numbers(const msdu__recursion_args *args);

/*
 * A call on which ranks do not synchronize: advance dl, dv; return g + K in gradient (dtype). One
 * pass. gradient and state hold count elements. |g|^2 is added to sums->update_sq.
 */
void msdu__recursion_local(const msdu_recursion *c, const msdu_recursion_state *state,
                           void *gradient, uint64_t count, int32_t dtype, msdu__sums *sums);
/* First half of a synchronizing call: advance dl, dv; send <- dl, |dl|^2 added to
 * sums->update_sq. gradient is only read. */
void msdu__recursion_capture(const msdu_recursion *c, const msdu_recursion_state *state,
                             const void *gradient, void *send, uint64_t count, int32_t dtype,
                             msdu__sums *sums);
/*
 * Second half of the same call: mean is the mean of all ranks' dl; T = (dl - mean)/lr, dl <- 0; K
 * from T and r; gradient += K.
 *
 * lr = 0 moves nothing: the drift is kept for a later synchronization, on all ranks alike.
 */
void msdu__recursion_apply(const msdu_recursion *c, const msdu_recursion_state *state,
                           const void *mean, void *gradient, uint64_t count, int32_t dtype);

#endif
