/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint of fault_rank. */
#include "fault_state.h"

#include <stdio.h>
#include <stdlib.h>

typedef size_t (*transfer_fn)(void *data, size_t size, size_t count, FILE *file);

static size_t write_to(void *data, size_t size, size_t count, FILE *file)
{
    return fwrite(data, size, count, file);
}

/* Parameters and velocities, to or from a file. */
static bool transfer_model(const fault_model *model, FILE *file, transfer_fn transfer)
{
    bool is_well = true;
    for (uint64_t t = 0; t < FAULT_TENSORS; t++) {
        size_t count = fault_model_count(t);
        is_well = is_well && transfer(model->parameter[t], sizeof(float), count, file) == count &&
                  transfer(model->velocity[t], sizeof(float), count, file) == count;
    }
    return is_well;
}

static msdu_status take(msdu_ctx *ctx, unsigned char **state_out, size_t *bytes_out)
{
    msdu_status status = msdu_state_get(ctx, NULL, 0, bytes_out);
    *state_out = status == MSDU_OK ? malloc(*bytes_out) : NULL;
    if (status == MSDU_OK && *state_out == NULL) {
        return MSDU_ERR_NO_MEMORY;
    }
    return status == MSDU_OK ? msdu_state_get(ctx, *state_out, *bytes_out, bytes_out) : status;
}

msdu_status fault_state_save(msdu_ctx *ctx, const char *path, const fault_model *model,
                             const fault_progress *progress)
{
    unsigned char *state = NULL;
    size_t bytes = 0;
    msdu_status status = take(ctx, &state, &bytes);
    FILE *file = status == MSDU_OK ? fopen(path, "wb") : NULL;
    if (file != NULL) {
        bool is_well = fwrite(progress, sizeof(*progress), 1, file) == 1 &&
                       transfer_model(model, file, write_to) &&
                       fwrite(&bytes, sizeof(bytes), 1, file) == 1 &&
                       fwrite(state, 1, bytes, file) == bytes;
        status = fclose(file) == 0 && is_well ? MSDU_OK : MSDU_ERR_IO;
    } else if (status == MSDU_OK) {
        status = MSDU_ERR_IO;
    }
    free(state);
    return status;
}

msdu_status fault_state_load(msdu_ctx *ctx, const char *path, const fault_model *model,
                             fault_progress *progress_out)
{
    size_t bytes = 0;
    unsigned char *state = NULL;
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return MSDU_ERR_IO;
    }
    bool is_well = fread(progress_out, sizeof(*progress_out), 1, file) == 1 &&
                   transfer_model(model, file, fread) && fread(&bytes, sizeof(bytes), 1, file) == 1;
    state = is_well ? malloc(bytes) : NULL;
    is_well = state != NULL && fread(state, 1, bytes, file) == bytes;
    (void)fclose(file);
    msdu_status status = is_well ? msdu_state_set(ctx, state, bytes) : MSDU_ERR_IO;
    free(state);
    return status;
}
