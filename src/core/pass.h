/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passes: every loop over tensor data that the core asks for, by one description (msdu/device.h),
 * so that memory of a device needs no second pipeline. Where tensors are the host's a pass is
 * carried out at once by the stages' own loops; else it is the device's to do, and marks tell when.
 */
#ifndef MSDU_PASS_H
#define MSDU_PASS_H

#include "engine.h"
#include "wire/wire.h"

/* A pass, and what the stages' own loops take in place of the numbers that a device gets. */
typedef struct msdu__pass {
    msdu_pass data;
    const msdu__chain *chain; /* APPLY */
    const msdu__correct_args *correct;
    const msdu__recursion_args *recursion; /* LOCAL, DRIFT, MEET */
    const msdu__exchange *exchange;        /* ENCODE, REDUCE, DECODE */
    uint64_t *hash; /* CAPTURE: of the parameters, on the host only; NULL: not wanted */
} msdu__pass;

/* Carry out a pass over host memory now. */
void msdu__pass_host(const msdu__pass *pass);
/* Fill in the numbers that a device gets. */
void msdu__pass_number(msdu__pass *pass);

/* Carry out, or launch, a pass; a failure is the context's. */
void msdu__pass_run(msdu__engine *e, msdu__pass *pass);
/* The point behind all passes so far; always reached where tensors are the host's. */
uint64_t msdu__pass_mark(msdu__engine *e);
/* False: not yet, or the context has failed. */
bool msdu__pass_reached(msdu__engine *e, uint64_t mark);
/* Wait until everything run so far is done; a failure is returned and the context's. */
msdu_status msdu__pass_settle(msdu__engine *e);
/* Copy between memory of tensors and of the host, behind everything run so far. */
msdu_status msdu__pass_copy(msdu__engine *e, void *to, const void *from, uint64_t bytes);

#endif
