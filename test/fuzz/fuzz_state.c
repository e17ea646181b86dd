/* SPDX-License-Identifier: Apache-2.0 */
/*
 * States with any values: the input edits a good state, whose checksum is then made right again, so
 * that every check behind it is reached. A state that is taken must be one to train on. Built with
 * -fsanitize=fuzzer it is a fuzzer; built with FUZZ_CORPUS_RUN it runs the files named as arguments
 * once each, and edits of every word of the state, as an ordinary test.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/context.h"
#include "checkpoint/state.h"

#define INPUT_MAX_BYTES 65536
#define STATE_BYTES_MAX 65536
#define COUNT           40
#define STEPS           9 /* after which a mean waits */
#define DEADLINE_MS     200

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int taken; /* states that were accepted */
static float parameter[2][COUNT];
static float gradient[2][COUNT];

static msdu_ctx *start(const char *overlap)
{
    msdu_ctx *ctx = NULL;
    msdu_config config = MSDU_CONFIG_INIT;
    config.ranks = 1;
    config.backend = "local";
    config.domain = "auto";
    config.overlap = overlap;
    config.interval = "fixed";
    config.interval_steps = 4;
    config.warmup_steps = 2;
    config.delay_steps = 2;
    config.fragments = 2;
    config.wire = "int4";
    config.correct = "outer";
    config.slice_bytes = 128;
    config.fuse_bytes = 64;
    config.wire_block = 16;
    config.deadline_ms = DEADLINE_MS;
    if (msdu_create(&config, &ctx) != MSDU_OK) {
        abort();
    }
    for (int t = 0; t < 2; t++) {
        msdu_tensor_desc desc = MSDU_TENSOR_INIT;
        desc.name = t == 0 ? "a" : "b";
        desc.parameter = parameter[t];
        desc.gradient = gradient[t];
        desc.count = COUNT;
        if (msdu_tensor_add(ctx, &desc, NULL) != MSDU_OK) {
            abort();
        }
    }
    if (msdu_start(ctx) != MSDU_OK) {
        abort();
    }
    return ctx;
}

/* A failure is allowed, such as a parameter that became infinite; a hang or a crash is not. */
static void train(msdu_ctx *ctx, int steps)
{
    msdu_status status = MSDU_OK;
    for (int step = 0; step < steps && status == MSDU_OK; step++) {
        status = msdu_tensor_wait(ctx, MSDU_ALL_TENSORS, MSDU_PARAMETER);
        for (int i = 0; status == MSDU_OK && i < 2 * COUNT; i++) {
            float *w = &parameter[i / COUNT][i % COUNT];
            gradient[i / COUNT][i % COUNT] = *w - (float)i;
            *w -= 0.1F * gradient[i / COUNT][i % COUNT];
        }
        status = status == MSDU_OK ? msdu_step(ctx) : status;
    }
}

/* A good state, made once for each overlap. */
static size_t good_state(const char *overlap, unsigned char *out)
{
    size_t bytes = 0;
    msdu_ctx *ctx = start(overlap);
    train(ctx, STEPS);
    if (msdu_state_get(ctx, out, STATE_BYTES_MAX, &bytes) != MSDU_OK) {
        abort();
    }
    msdu_destroy(ctx);
    return bytes;
}

/* False: it was refused. */
static bool take(const char *overlap, unsigned char *state, size_t bytes)
{
    msdu_ctx *ctx = start(overlap);
    msdu_status status = msdu_state_set(ctx, state, bytes);
    if (status != MSDU_OK && (msdu_last_error()[0] == '\0' || ctx->caller.step != 0)) {
        abort();
    }
    train(ctx, 12);
    msdu_destroy(ctx);
    return status == MSDU_OK;
}

/* Input: the overlap, then edits of 11 bytes: offset (2), kind (1), value (8). */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const overlaps[] = {"backward", "delayed", "streamed"};
    static unsigned char good[3][STATE_BYTES_MAX];
    static unsigned char state[STATE_BYTES_MAX];
    static size_t sizes[3];
    if (bytes < 1 || bytes > INPUT_MAX_BYTES) {
        return 0;
    }
    int kind = data[0] % 3;
    if (sizes[kind] == 0) {
        sizes[kind] = good_state(overlaps[kind], good[kind]);
    }
    memcpy(state, good[kind], sizes[kind]);
    for (size_t at = 1; at + 11 <= bytes; at += 11) {
        size_t offset = (data[at] | (size_t)data[at + 1] << 8) % (sizes[kind] - 8);
        memcpy(state + offset, data + at + 3, data[at + 2] % 8 + 1);
    }
    msdu__state_seal(state, sizes[kind]);
    bool is_taken = take(overlaps[kind], state, sizes[kind]);
    taken += is_taken ? 1 : 0;
    if (bytes == 1 && !is_taken) {
        abort(); /* nothing was edited */
    }
    return 0;
}

#ifdef FUZZ_CORPUS_RUN
/* Every word behind the frame and the text takes a few values that could hurt. */
static int edit_words(void)
{
    static const uint64_t values[] = {0, 1, 2, UINT32_MAX, UINT64_MAX / 4, UINT64_MAX};
    static unsigned char good[STATE_BYTES_MAX];
    size_t bytes = good_state("delayed", good);
    uint64_t text = 0;
    int count = 0;
    memcpy(&text, good + 56, sizeof(text));
    for (size_t at = 64 + text; at + 8 <= bytes; at += 8) {
        for (int k = 0; k < 6; k++) {
            uint8_t input[12] = {1, (uint8_t)at, (uint8_t)(at >> 8), 7};
            memcpy(input + 4, &values[k], 8);
            (void)LLVMFuzzerTestOneInput(input, sizeof(input));
            count++;
        }
    }
    return count;
}

int main(int argc, char **argv)
{
    static uint8_t data[INPUT_MAX_BYTES];
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (file == NULL) {
            perror(argv[i]);
            return 1;
        }
        size_t bytes = fread(data, 1, sizeof(data), file);
        (void)fclose(file);
        (void)LLVMFuzzerTestOneInput(data, bytes);
    }
    int edits = edit_words();
    printf("%d inputs, %d edits, %d taken\n", argc - 1, edits, taken);
    return argc > 1 && taken > argc - 1 && taken < edits ? 0 : 1;
}
#endif
