/* SPDX-License-Identifier: Apache-2.0 */
/* Rule "average": parameters become the mean of all ranks; pure. */
#include "rules.h"

static void apply(const msdu__correct_args *args, const msdu__chunk *chunk)
{
    (void)args;
    msdu__chunk_loops(chunk)->average(chunk->anchor, chunk->param, chunk->update, chunk->count);
}

static msdu_rule_step step(const msdu__correct_args *args, bool is_prompt)
{
    (void)args;
    (void)is_prompt;
    return (msdu_rule_step){.rule = MSDU_RULE_AVERAGE};
}

const msdu__rule msdu__rule_average = {
    .name = "average",
    .help = "w <- mean: every rank continues from the mean of all ranks",
    .needs = 0,
    .is_merge = true,
    .apply = apply,
    .step = step,
};
