/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels: the loops over tensor data (msdu/device.h), by the host's table or by that of the
 * device where tensors are, so that memory of a device needs no second progress engine. The host's
 * are carried out at once; of a device's, marks tell when they have ended.
 */
#ifndef MSDU_KERNELS_H
#define MSDU_KERNELS_H

#include "engine.h"

/* kernels_host.c: the stages' own loops. */
extern const msdu_kernels msdu__kernels_host;

/* Those of the memory where tensors are. */
const msdu_kernels *msdu__kernels_of(const msdu__engine *e);
/* What came of a kernel: a failure is the context's. */
void msdu__kernels_told(msdu__engine *e, msdu_status status);
/* Carry out, or launch, one of them: MSDU__KERNEL(e, fill, &at, out, 0). */
#define MSDU__KERNEL(e, name, ...) msdu__kernels_told((e), msdu__kernels_of(e)->name(__VA_ARGS__))

/* Of memory that the trainer has not announced. */
msdu_launch msdu__kernels_at(const msdu__engine *e, msdu_stage stage, int32_t dtype,
                             uint64_t count);

/* The point behind all kernels so far; always reached where tensors are the host's. */
uint64_t msdu__kernels_mark(msdu__engine *e);
/* False: not yet, or the context has failed. */
bool msdu__kernels_reached(msdu__engine *e, uint64_t mark);
/* Wait until everything run so far is done; a failure is returned and the context's. */
msdu_status msdu__kernels_settle(msdu__engine *e);
/* Copy between memory of tensors and of the host, behind everything run so far. */
msdu_status msdu__kernels_copy(msdu__engine *e, void *to, const void *from, uint64_t bytes);

#endif
