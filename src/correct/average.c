/* SPDX-License-Identifier: Apache-2.0 */
/* Rule "average": parameters become the mean of all ranks; pure. */
#include "rules.h"

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
    .step = step,
};
