/* SPDX-License-Identifier: Apache-2.0 */
/* Before the first step: ranks agree, slices get their tables and memory. */
#ifndef MSDU_STARTUP_H
#define MSDU_STARTUP_H

#include "core/engine.h"
#include "former.h"

/* --- agree.c --- */
msdu_status msdu__agree(msdu__engine *e); /* ranks compare tensors and settings */
/* Hash of the bytes of all tensors of a role, as far as they have a parameter. */
uint64_t msdu__agree_hash(msdu__engine *e, msdu_role role);
/* What ranks must have in common, a fact a line, with or without hashes of the parameters; to be
 * freed. NULL: no memory. */
char *msdu__agree_describe(msdu__engine *e, bool has_values);
/* Two texts, and the first lines in which they differ. */
typedef struct msdu__lines {
    const char *a;
    const char *a_end;
    const char *b;
    const char *b_end;
    int a_length;
    int b_length;
} msdu__lines;
/* Move a and b to the first difference and set the lengths; false: there is none. */
bool msdu__agree_first_difference(msdu__lines *lines);
/* --- hosts.c --- */
msdu_status msdu__hosts_find(msdu__engine *e); /* who is on which host; two levels, if so */
/* --- heal.c --- */
/* What a rank brings from one epoch into the next (setting ranks_least); plain data. */
typedef struct msdu__carried {
    uint64_t hash;         /* of its parameters */
    uint64_t is_newcomer;  /* it was in no epoch before */
    uint64_t needs_rest;   /* it took parameters, and not yet what the trainer shares */
    uint64_t is_exact;     /* it trained by gradients: parameters of all ranks are equal */
    uint64_t holds_back;   /* error feedback of it keeps a part of pseudo-gradients */
    uint64_t has_momentum; /* of outer steps */
    uint64_t step;         /* steps it has ended */
    double lr;
    double norm_average; /* clip: running norm of mean pseudo-gradients */
    msdu__interval_state policy;
    msdu__decision decision; /* the latest; reason is of no use */
    uint64_t has_given;      /* afterwards: some rank took rank 0's parameters or needs the rest, */
    uint64_t was_given;      /* this one does, */
    uint64_t was_averaged;   /* all took the mean of parameters */
} msdu__carried;
/* Parameters become equal on all ranks, and *carried what rank 0 brought. former: slices of the
 * epoch before, of this rank. */

msdu_status msdu__heal(msdu__engine *e, msdu__carried *carried, const msdu__former *former);
/* --- host.c --- */
/* What a backend is told of this rank; it borrows from the settings. */
msdu_host msdu__start_host(msdu__engine *e);
msdu_status
msdu__start_join(msdu__engine *e); /* join the group; blocks until all ranks are there */

/* --- start.c: slices, tables, memory --- */
msdu_status msdu__start_build(msdu__engine *e); /* slice and allocate */
/* Slices, their tables and memory, as e->model->tuning says; again where slices are cut anew. */
msdu_status msdu__start_tables(msdu__engine *e);
msdu_status msdu__start_levels(msdu__engine *e); /* once two levels are known of */
/* Names of slices, for the trace, to be freed; NULL: no memory. */
const char **msdu__start_names(const msdu__engine *e);

#endif
