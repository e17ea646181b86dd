/* SPDX-License-Identifier: Apache-2.0 */
/* Experimental: no training result in bench/results uses it. */
/* Rule "elastic": parameters are pulled a part of the way towards the mean; pure. */
#include "rules.h"

static msdu_rule_step step(const msdu__correct_args *args, bool is_prompt)
{
    (void)is_prompt;
    return (msdu_rule_step){.rule = MSDU_RULE_ELASTIC, .a = args->elastic_alpha};
}

const msdu__rule msdu__rule_elastic = {
    .name = "elastic",
    .help = "experimental: w <- w - elastic_alpha (w - mean): a pull towards the mean, as in EASGD",
    .needs = 0,
    .is_merge = true,
    .step = step,
};
