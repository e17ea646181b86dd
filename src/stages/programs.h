/* SPDX-License-Identifier: Apache-2.0 */
/* Programs to replay: a given order, and torch's schedules. Pure. */
#ifndef MSDU_STAGES_PROGRAMS_H
#define MSDU_STAGES_PROGRAMS_H

#include "replay.h"

/* An order as _PipelineScheduleRuntime executes it: sends are never waited for, and all receives
 * are posted at the start. rank_begin: as in msdu_stages. */
void msdu__programs_given(msdu__replay *replay, const msdu_stages_action *actions,
                          const uint32_t *rank_begin);
/* Schedule1F1B (torch 2.13): a send is waited for together with the next receive. */
void msdu__programs_1f1b(msdu__replay *replay);
/* ScheduleGPipe: a receive is posted when its data is wanted. */
void msdu__programs_gpipe(msdu__replay *replay);

#endif
