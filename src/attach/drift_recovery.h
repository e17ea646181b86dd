/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joining ranks that took local steps, once their gradients are reduced by MPI itself again. Pure
 * but for the memory of the list.
 *
 * Beside what all ranks have in common, a rank's parameters are off by x and its momentum buffer by
 * w. A call with the same sum on all ranks and c on top moves them as the trainer's optimizer does:
 *     u = c + wd x      w <- mu w + f u      x <- x - lr (a u + b w)
 * (a, b) is (0, 1), with Nesterov (1, mu). The system is linear, of two numbers an element and one
 * input, so two calls bring both to zero; the c that does so from where a rank is now is
 *     u = (x / lr - (b - a mu / f) mu w) / (a + f b - a mu).
 * Each tensor is for itself: the others may come in any order, or not at all.
 */
#ifndef MSDU_DRIFT_RECOVERY_H
#define MSDU_DRIFT_RECOVERY_H

#include <stdbool.h>
#include <stdint.h>

/* The trainer's optimizer, in units of the reduced gradients. */
typedef struct msdu__optimizer {
    double lr;
    double momentum;
    double factor; /* 1 - dampening */
    double weight_decay;
    bool is_nesterov;
} msdu__optimizer;

/* A gradient whose parameters differ between ranks. */
typedef struct msdu__apart {
    uint64_t count;
    int32_t kind;    /* of the call: odd is float32, even is float64 */
    uint32_t at;     /* of ... */
    uint32_t of;     /* ... reductions of a step, before the change */
    uint32_t calls;  /* since */
    double last_lr;  /* of the latest of them */
    bool is_busy;    /* such a call is under way */
    bool is_left;    /* not in the pattern that was learned since, and told so */
    uint64_t memory; /* where its sums lie; 0: anywhere */
    bool is_unsure;  /* others of its size came, which may have been its own */
    double rounding; /* of x, in the latest call */
    void *parameter; /* x of the elements, in the call's type */
    void *momentum;  /* w */
    struct msdu__apart *next;
} msdu__apart;

/* NULL: no memory. Zeroed, not in a list. */
msdu__apart *msdu__apart_new(uint64_t count, int32_t kind);
bool msdu__apart_is_double(const msdu__apart *apart);
/* The whole list; NULL is allowed. */
void msdu__apart_free(msdu__apart *list);

/* The largest x of the whole list; 0 behind a synchronization, though w is not. */
double msdu__apart_largest(const msdu__apart *list);
/* Do its parameters differ between ranks, by more than rounding and as far as this one knows? */
bool msdu__apart_differs(const msdu__apart *apart);
/* Its momentum? Then parameters will, if the optimizer goes on without a reduction. */
bool msdu__apart_drifts(const msdu__apart *apart);

/* Which is a call of this kind, whose sum comes to `memory`? Of several that had fewest calls the
 * first. NULL: none. */
msdu__apart *msdu__apart_find(msdu__apart *list, uint64_t count, int32_t kind, uint64_t memory);

/* `sum` is the same on all ranks: add what joins them; nothing to a sum with a NaN or infinity,
 * which is taken to be a step that the trainer skips (AMP). True: from the optimizer's next update
 * on this tensor is equal on all ranks, parameters and momentum. */
bool msdu__rejoin(const msdu__optimizer *optimizer, msdu__apart *apart, void *sum);
/* The same where sums come later than calls: what follows from the call alone, and elements first
 * .. first + count of the sum, which are at `sum`. */
bool msdu__rejoin_call(const msdu__optimizer *optimizer, msdu__apart *apart);
void msdu__rejoin_add(const msdu__optimizer *optimizer, msdu__apart *apart, uint64_t first,
                      uint64_t count, void *sum);

#endif
