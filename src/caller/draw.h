/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work drawn by speed (msdu_next): which samples of a step are this rank's.
 *
 * All ranks hold the same shares, which follow from the statistics messages alone, and each counts
 * for itself what the others draw. So nobody is asked, and every sample has one rank. A piece for
 * step s is divided by the shares that were decided before step s - ahead: all ranks know those
 * when the first of them draws it.
 */
#ifndef MSDU_DRAW_H
#define MSDU_DRAW_H

#include "core/engine.h"
#include "interval/shares.h"

#define MSDU__AHEAD_MOST    64
#define MSDU__DRAW_PIECES   128 /* steps whose pieces are kept; more than may be drawn ahead */
#define MSDU__DRAW_VERSIONS 12  /* shares that are kept, for as many steps */

/* What this rank has in a step. */
typedef struct msdu__piece {
    uint64_t step;
    uint64_t samples;
    uint64_t batch;   /* an even share; 0: nothing was drawn */
    uint64_t version; /* of the shares */
    uint32_t check;   /* of what is equal on all ranks */
} msdu__piece;

/* Work by the clock: each rank takes the next batch that it was given (interval/deal.h). */
typedef struct msdu__dealt {
    bool is_on;
    bool is_between; /* an epoch has ended on this rank, and the next one has not begun */
    uint64_t total;
    uint64_t batch;
    uint64_t first;    /* position at which dealing began */
    uint64_t position; /* as it was told last */
    uint64_t drawn;
    uint64_t epoch; /* ends of epochs since dealing began */
} msdu__dealt;

typedef struct msdu__draw {
    msdu__shares shares;
    msdu__share *of;
    msdu__share_bounds *parts;
    double *times;                         /* of each rank in the latest two rounds */
    double *sizes;                         /* by version, a ring: of each rank */
    uint64_t decided[MSDU__DRAW_VERSIONS]; /* at whose end a version was decided */
    uint64_t versions;                     /* so far */
    uint64_t *had;                         /* room for a number of each rank */
    uint64_t looked;                       /* step of the latest decision, to move or not */
    uint64_t samples;                      /* of all steps ended, in shares and ... */
    uint64_t nominal;                      /* if all had been even */
    uint64_t batch;                        /* of the latest piece; at least 1 */
    msdu__piece pieces[MSDU__DRAW_PIECES]; /* by step */
    uint64_t clock_step;                   /* the first by the clock; UINT64_MAX: none yet */
    msdu__dealt dealt;
} msdu__draw;

/* Even shares. Its memory is freed by msdu__draw_free(), also where this fails. */
msdu_status msdu__draw_prepare(msdu__draw *d, msdu__handover *hand, int32_t ranks);
void msdu__draw_free(msdu__draw *d);
/* Is what the caller filled in of any use? `ahead`: steps that it draws ahead at most. */
msdu_status msdu__draw_check(const msdu__job *job, const msdu_work *work);
/* Is the next piece dealt? Pieces are divided up to the step to which any rank may have drawn when
 * the clock began, so all ranks have divided the same ones. */
bool msdu__draw_is_dealt(const msdu__draw *d, const msdu__job *job, uint64_t now,
                         const msdu_work *work);
/* Of what is equal on all ranks; not 0. */
uint32_t msdu__draw_check_of(const msdu_work *work, uint64_t position);
/* The next piece, for step `now` or later; nothing changes where it fails. */
msdu_status msdu__draw_next(msdu__draw *d, const msdu__job *job, uint64_t now, msdu_work *work);
/* The piece of a step; NULL: none was drawn. */
const msdu__piece *msdu__draw_piece(const msdu__draw *d, uint64_t step);
/* A step ends. */
void msdu__draw_count(msdu__draw *d, uint64_t step);
/* At the end of step `now`, of a round that ended with step `heard`: step times of all ranks. */
void msdu__draw_hear(msdu__draw *d, const msdu__job *job, uint64_t now, uint64_t heard,
                     const double *step_ns);

#endif
