/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Profiles from any bytes. Built with -fsanitize=fuzzer it is a fuzzer; built with FUZZ_CORPUS_RUN
 * it runs the files named as arguments once each, and every beginning of them, as an ordinary
 * test.
 */
#include "../bench/profile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    /* a copy of exactly this size, so that a sanitizer sees every byte read past it */
    char *text = malloc(bytes > 0 ? bytes : 1);
    if (text == NULL) {
        return 0;
    }
    memcpy(text, data, bytes);
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
    static uint8_t data[65536];
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (file == NULL) {
            perror(argv[i]);
            return 1;
        }
        size_t bytes = fread(data, 1, sizeof(data), file);
        (void)fclose(file);
        for (size_t length = bytes > 2000 ? bytes - 2000 : 0; length <= bytes; length++) {
            (void)LLVMFuzzerTestOneInput(data, length);
        }
    }
    printf("%d inputs\n", argc - 1);
    return argc > 1 ? 0 : 1;
}
#endif
