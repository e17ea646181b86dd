/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The toy trainer's tensors are in (a stand-in's) device memory, which it reaches as if it were the
 * host's, and its ranks are threads over the module nccl (over a stand-in, too).
 */
#include "ranks_place.h"
#include "suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#define SCHEME "file://"

void ranks_place_begin(char *rendezvous, size_t bytes)
{
    (void)snprintf(rendezvous, bytes, SCHEME "%s/ranks-XXXXXX", suite_folder());
    if (mkdtemp(rendezvous + strlen(SCHEME)) == NULL) {
        rendezvous[0] = '\0'; /* then no rank finds another */
    }
}

void ranks_place_end(const char *rendezvous)
{
    (void)rmdir(rendezvous + (rendezvous[0] == '\0' ? 0 : strlen(SCHEME)));
}

void ranks_place_config(msdu_config *config, const char *rendezvous)
{
    config->backend = "nccl_standin";
    config->rendezvous = config->ranks > 1 ? rendezvous : NULL;
}

int32_t ranks_place(void)
{
    return MSDU_PLACE_DEVICE;
}

void *ranks_place_take(size_t bytes)
{
    void *memory = NULL;
    if (cudaMalloc(&memory, bytes) != cudaSuccess) {
        return NULL;
    }
    return memset(memory, 0, bytes);
}

void ranks_place_give(void *memory)
{
    (void)cudaFree(memory);
}
