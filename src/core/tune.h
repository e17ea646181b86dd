/* SPDX-License-Identifier: Apache-2.0 */
/* Size of slices and window, as measured. */
#ifndef MSDU_TUNE_H
#define MSDU_TUNE_H

#include "engine.h"

/* May this context's slices be cut anew? Sets what the tuner has to know; only before the start. */
void msdu__tune_prepare(msdu__engine *e);
/* Measure anew from the present tuning on, whatever was decided. */
void msdu__tune_begin(msdu__engine *e);
/* End of a round: what the ranks shall change to, in values that are equal on all of them. */
void msdu__tune_hear(msdu__engine *e, msdu__fragment *f, const msdu__round_stats *stats);
/* Rounds of a wire, where nothing was measured: as float32 was cut first, in as many channels. */
msdu__tuning msdu__tune_of_wire(const msdu__job *job, const msdu__model *model, int wire,
                                uint32_t lanes);

#endif
