/* SPDX-License-Identifier: Apache-2.0 */
/* A faulty library, by LD_PRELOAD: a synchronization that is asked for is promised and not made.
 * The guard of attached trainers has to tell. */
#include <msdu/msdu.h>

__attribute__((visibility("default"))) msdu_status msdu_sync_after_step(msdu_ctx *ctx)
{
    (void)ctx;
    return MSDU_OK;
}
