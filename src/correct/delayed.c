/* SPDX-License-Identifier: Apache-2.0 */
/* Rule "delayed": the mean arrives late, the steps taken meanwhile are kept; pure. */
#include "rules.h"

static void apply(const msdu__correct_args *args, const msdu__chunk *chunk)
{
    const msdu__vec_real *loops = msdu__chunk_loops(chunk);
    if (chunk->snapshot == chunk->param) {
        /* Nothing was overlapped: w - y is zero, and the loop may not see one array twice. */
        loops->average(chunk->anchor, chunk->param, chunk->update, chunk->count);
        return;
    }
    loops->delayed(chunk->anchor, chunk->param, chunk->update, chunk->snapshot, args->delayed_keep,
                   chunk->count);
}

static msdu_rule_step step(const msdu__correct_args *args, bool is_prompt)
{
    return is_prompt ? (msdu_rule_step){.rule = MSDU_RULE_AVERAGE}
                     : (msdu_rule_step){.rule = MSDU_RULE_DELAYED, .a = args->delayed_keep};
}

const msdu__rule msdu__rule_delayed = {
    .name = "delayed",
    .help = "w <- mean + delayed_keep (w - y): keep the progress made since the snapshot y",
    .needs = MSDU__NEEDS_SNAPSHOT | MSDU__NEEDS_PARAM,
    .is_merge = true,
    .apply = apply,
    .step = step,
};
