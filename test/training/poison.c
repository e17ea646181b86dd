/* SPDX-License-Identifier: Apache-2.0 */
/* Trainings in which one rank has a bad gradient in one step. */
#include "poison.h"

static const ranks_tensor model[POISON_TENSORS] = {
    {.count = 5000}, {.count = 7},  {.count = 300, .dtype = MSDU_FLOAT64},
    {.count = 40},   {.count = 90}, {.count = 200, .dtype = MSDU_FLOAT16},
};

static void spoil(ranks_self *self, int step, uint32_t tensor)
{
    const poison *p = self->job->user;
    bool is_bad = self->rank == p->rank;
    if (step == p->step && tensor == p->tensor && (is_bad || p->is_spike)) {
        uint64_t at = is_bad ? self->job->tensors[tensor].count - 1 : 0;
        ranks_put(self->job->tensors[tensor].dtype, self->gradient[tensor], at,
                  is_bad ? p->value : 1e30);
    }
}

ranks_job poison_job(poison *p, const char *check_finite, const char *wire)
{
    return (ranks_job){
        .ranks = 3,
        .steps = 12,
        .tensors = model,
        .tensor_count = POISON_TENSORS,
        .config = {.domain = "gradient",
                   .interval = "fixed",
                   .wire = wire,
                   .check_finite = check_finite,
                   .slice_bytes = 4096,
                   .fuse_bytes = 2048,
                   .wire_block = 64,
                   .lr = 0.05,
                   .momentum = 0.9},
        .computed = spoil,
        .user = p,
    };
}
