/* SPDX-License-Identifier: Apache-2.0 */
/* The toy trainer's tensors are the host's, its ranks are threads over "local". */
#include "ranks_place.h"

#include <stdlib.h>

void ranks_place_begin(char *rendezvous, size_t bytes)
{
    (void)bytes;
    rendezvous[0] = '\0';
}

void ranks_place_end(const char *rendezvous)
{
    (void)rendezvous;
}

void ranks_place_config(msdu_config *config, const char *rendezvous)
{
    (void)rendezvous;
    config->backend = "local";
}

int32_t ranks_place(void)
{
    return MSDU_PLACE_HOST;
}

void *ranks_place_take(size_t bytes)
{
    return calloc(1, bytes);
}

void ranks_place_give(void *memory)
{
    free(memory);
}
