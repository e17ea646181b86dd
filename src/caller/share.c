/* SPDX-License-Identifier: Apache-2.0 */
/* Between steps: bytes of the trainer's that all ranks take from rank 0. */
#include "caller.h"

#include "core/blocking.h"
#include "core/progress.h"

#define PIECE_BYTES (UINT64_C(4) << 20) /* each has the whole deadline */

typedef struct share {
    void *data;
    uint64_t bytes;
} share;

static msdu__outcome carry_share(msdu__engine *e, void *subject, uint64_t number)
{
    const share *s = subject;
    msdu_status status = MSDU_OK;
    (void)number;
    for (uint64_t at = 0; at < s->bytes && status == MSDU_OK; at += PIECE_BYTES) {
        msdu_op op = {.kind = MSDU_OP_BROADCAST,
                      .count = s->bytes - at < PIECE_BYTES ? s->bytes - at : PIECE_BYTES,
                      .recv = (char *)s->data + at};
        status = msdu__blocking_run(e, &op, 0);
    }
    if (status != MSDU_OK) {
        msdu__handover_fail_last(e->hand, status);
    }
    return msdu__event_completed(e);
}

msdu_status msdu__caller_share(msdu__caller *c, void *data, uint64_t bytes)
{
    share s = {.data = data, .bytes = bytes};
    msdu_status status = c->is_clocked ? msdu__boundary_join(c) : MSDU_OK;
    status = status == MSDU_OK ? msdu__caller_drain(c) : status;
    return status == MSDU_OK
               ? msdu__caller_carry(c, &(msdu__event){.run = carry_share, .subject = &s},
                                    "what rank 0 shares")
               : status;
}
