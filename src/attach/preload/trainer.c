/* SPDX-License-Identifier: Apache-2.0 */
/* What trainers find by dlsym(). */
#include "preload.h"

/* Found by trainers with dlsym(): parameters shall be equal on all ranks after the next step. */
PRELOAD void msdu_attach_sync_after_step(void)
{
    const msdu__attach *attach = msdu__ladder_loaded();
    const msdu__attach_nccl *nccl = msdu__nccl_loaded();
    if (attach != NULL) {
        attach->meet();
    }
    if (nccl != NULL) {
        nccl->meet();
    }
}

/* Likewise: the learning rate of the next step. */
PRELOAD void msdu_attach_lr(double lr)
{
    const msdu__attach *attach = msdu__ladder_loaded();
    const msdu__attach_nccl *nccl = msdu__nccl_loaded();
    if (attach != NULL) {
        attach->set_lr(lr);
    }
    if (nccl != NULL) {
        nccl->set_lr(lr);
    }
}
