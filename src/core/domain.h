/* SPDX-License-Identifier: Apache-2.0 */
/* What a slice means in each domain: kernels over its memory. The communication thread. */
#ifndef MSDU_DOMAIN_H
#define MSDU_DOMAIN_H

#include "engine.h"

/* buf <- what is to be reduced. */
void msdu__domain_capture(msdu__engine *e, msdu__fragment *f, uint32_t slice);
/* Statistics of what was captured, once those kernels are done. */
void msdu__domain_sums(msdu__engine *e, msdu__fragment *f);
/* A new round: nothing was found in a slice yet. */
void msdu__domain_forget_sums(msdu__engine *e, uint32_t slice);
/* The mean has arrived in buf: scale it if needed, unpack gradients. */
void msdu__domain_reduced(msdu__engine *e, msdu__fragment *f, uint32_t slice);
/* Is a slice given back as soon as its mean has arrived (setting commit = tensor)? */
bool msdu__domain_commits_slice(const msdu__engine *e, const msdu__fragment *f);
/* The round is complete: correct parameters or gradients of one slice. */
void msdu__domain_apply(msdu__engine *e, msdu__fragment *f, uint32_t slice);
/* Accumulated domain, a call on which ranks do not synchronize. */
void msdu__domain_local(msdu__engine *e, uint32_t slice);
/*
 * x += factor times what error feedback still holds back, which is then none: before a float32
 * reduction. own: what the reduction will divide by, for the part held back from the mean.
 */
void msdu__domain_flush(msdu__engine *e, float *x, uint32_t slice, double factor, double own);
/* Remember the error feedback, as long as the round that changes it may come to nothing; and as it
 * was then. */
void msdu__domain_keep(msdu__engine *e, uint32_t slice);
void msdu__domain_restore(msdu__engine *e, uint32_t slice);
/* Nothing is held back any more. */
void msdu__domain_clear(msdu__engine *e, uint32_t slice, bool is_late);
/* The round is skipped: gradients <- NaN, error feedback as it was before. */
void msdu__domain_skip(msdu__engine *e, const msdu__fragment *f, uint32_t slice);
/* Zeros in registered optimizer state; then it is given back. */
void msdu__domain_reset(msdu__engine *e);
/* Rounds by the clock: parameters take the shift, which is zero then. */
void msdu__domain_shift(msdu__engine *e, uint32_t slice);
/* anchors <- parameters */
void msdu__domain_anchor(msdu__engine *e);
/* parameters <- anchors */
void msdu__domain_rollback(msdu__engine *e);
/* Accumulated domain: parameters were just averaged, there is no drift. */
void msdu__domain_forget(msdu__engine *e, uint32_t slice);
/* Where the reduction of a slice happens. */
void *msdu__domain_buffer(msdu__engine *e, const msdu__fragment *f, uint32_t slice);

#endif
