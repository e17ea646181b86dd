/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Profiles from any bytes. Built with -fsanitize=fuzzer it is a fuzzer; built with FUZZ_CORPUS_RUN
 * it runs the files named as arguments once each, every beginning of them, and mutations of
 * them, as an ordinary test.
 */
#include "fuzz_mutate.h"
#include "predict/profile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BEGINNINGS    2000
#define MUTATED_BYTES 10000000 /* read, of each file's mutations: a second or less */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* What holds for whatever was read. */
static void check_read(msdu__profile *p)
{
    uint32_t tensors = 0;
    for (uint32_t i = 0; i < p->layer_count; i++) {
        const msdu__profile_layer *layer = &p->layers[i];
        if (layer->first_tensor != tensors || !(layer->forward_ns >= 0) ||
            !(layer->backward_ns >= 0) || layer->name[0] == '\0') {
            abort();
        }
        tensors += layer->tensor_count;
    }
    double compute = msdu__profile_compute_ns(p);
    if (tensors != p->tensor_count || !(compute > 0) || !isfinite(compute) ||
        msdu__profile_elements(p) > MSDU__PROFILE_COUNT_MAX) {
        abort();
    }
    msdu__profile_scale(p, 0.5, 1e-9);
    if (msdu__profile_elements(p) < p->tensor_count) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    msdu__profile p;
    char why[128] = "";
    char *text = fuzz_copy(data, bytes);
    if (msdu__profile_parse(text, bytes, &p, why, sizeof(why))) {
        check_read(&p);
    } else if (why[0] == '\0' || strchr(why, '\n') != NULL || p.layers != NULL) {
        abort();
    }
    msdu__profile_free(&p);
    free(text);
    return 0;
}

#ifdef FUZZ_CORPUS_RUN
int main(int argc, char **argv)
{
    return fuzz_corpus(LLVMFuzzerTestOneInput, argc, argv, BEGINNINGS, MUTATED_BYTES);
}
#endif
