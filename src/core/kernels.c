/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernels run, what becomes of their failures, and when they have ended. */
#include "kernels.h"

#include <string.h>

const msdu_kernels *msdu__kernels_of(const msdu__engine *e)
{
    return e->job->device != NULL ? e->job->device->kernels : &msdu__kernels_host;
}

void msdu__kernels_told(msdu__engine *e, msdu_status status)
{
    if (status < 0) {
        msdu__handover_fail_last(e->hand, status);
    }
}

msdu_launch msdu__kernels_at(const msdu__engine *e, msdu_stage stage, int32_t dtype, uint64_t count)
{
    return (msdu_launch){
        .comm = e->job->comm, .count = count, .dtype = dtype, .stage = (int32_t)stage};
}

uint64_t msdu__kernels_mark(msdu__engine *e)
{
    uint64_t mark = 0;
    if (e->job->device != NULL) {
        msdu__kernels_told(e, e->job->device->mark(e->job->comm, &mark));
    }
    return mark;
}

bool msdu__kernels_reached(msdu__engine *e, uint64_t mark)
{
    msdu_status status =
        e->job->device == NULL ? MSDU_OK : e->job->device->reached(e->job->comm, mark);
    msdu__kernels_told(e, status);
    e->waits_for_device = e->waits_for_device || status == MSDU_IN_PROGRESS;
    return status == MSDU_OK;
}

msdu_status msdu__kernels_settle(msdu__engine *e)
{
    msdu_status status =
        e->job->device == NULL ? MSDU_OK : e->job->device->before(e->job->comm, NULL, 1);
    msdu__kernels_told(e, status);
    return status;
}

msdu_status msdu__kernels_copy(msdu__engine *e, void *to, const void *from, uint64_t bytes)
{
    if (e->job->device != NULL) {
        return e->job->device->copy(e->job->comm, to, from, bytes);
    }
    memcpy(to, from, bytes);
    return MSDU_OK;
}
