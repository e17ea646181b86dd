/* SPDX-License-Identifier: Apache-2.0 */
/* Rule "delayed": the mean arrives late, the steps taken meanwhile are kept; pure. */
#include "rules.h"

static msdu_rule_step step(const msdu__correct_args *args, bool is_prompt)
{
    /* where nothing was overlapped w - y is zero, and y is no array of its own */
    return is_prompt ? (msdu_rule_step){.rule = MSDU_RULE_AVERAGE}
                     : (msdu_rule_step){.rule = MSDU_RULE_DELAYED, .a = args->delayed_keep};
}

const msdu__rule msdu__rule_delayed = {
    .name = "delayed",
    .help = "w <- mean + delayed_keep (w - y): keep the progress made since the snapshot y",
    .needs = MSDU__NEEDS_SNAPSHOT,
    .is_merge = true,
    .step = step,
};
