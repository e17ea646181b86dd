/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernels run, what becomes of their failures, and when they have ended. */
#include "kernels.h"

#include <string.h>

#include "pipeline.h"

const msdu_kernels *msdu__kernels_of(const msdu__pipeline *p)
{
    return p->device != NULL ? p->device->kernels : &msdu__kernels_host;
}

void msdu__kernels_told(msdu__pipeline *p, msdu_status status)
{
    if (status < 0) {
        msdu__pipeline_fail(p, status, msdu_last_error());
    }
}

msdu_launch msdu__kernels_at(const msdu__pipeline *p, msdu_stage stage, int32_t dtype,
                             uint64_t count)
{
    return (msdu_launch){.comm = p->comm, .count = count, .dtype = dtype, .stage = (int32_t)stage};
}

uint64_t msdu__kernels_mark(msdu__pipeline *p)
{
    uint64_t mark = 0;
    if (p->device != NULL) {
        msdu__kernels_told(p, p->device->mark(p->comm, &mark));
    }
    return mark;
}

bool msdu__kernels_reached(msdu__pipeline *p, uint64_t mark)
{
    msdu_status status = p->device == NULL ? MSDU_OK : p->device->reached(p->comm, mark);
    msdu__kernels_told(p, status);
    p->waits_for_device = p->waits_for_device || status == MSDU_IN_PROGRESS;
    return status == MSDU_OK;
}

msdu_status msdu__kernels_settle(msdu__pipeline *p)
{
    msdu_status status = p->device == NULL ? MSDU_OK : p->device->before(p->comm, NULL, 1);
    msdu__kernels_told(p, status);
    return status;
}

msdu_status msdu__kernels_copy(msdu__pipeline *p, void *to, const void *from, uint64_t bytes)
{
    if (p->device != NULL) {
        return p->device->copy(p->comm, to, from, bytes);
    }
    memcpy(to, from, bytes);
    return MSDU_OK;
}
