/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest trainer: one rank, one tensor, one step; checks header against library. */
#include <msdu/backend.h> /* for authors of modules; all that it includes must be installed */
#include <msdu/msdu.h>

#include <stdio.h>
#include <string.h>

#define TEXT_OF_(x) #x
#define TEXT_OF(x)  TEXT_OF_(x)
#define HEADER_VERSION                                                                             \
    TEXT_OF(MSDU_VERSION_MAJOR) "." TEXT_OF(MSDU_VERSION_MINOR) "." TEXT_OF(MSDU_VERSION_PATCH)

static msdu_status one_step(msdu_ctx *ctx)
{
    static float weight[4] = {1.0F, 2.0F, 3.0F, 4.0F};
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    desc.name = "weight";
    desc.parameter = weight;
    desc.count = 4;
    msdu_status status = msdu_tensor_add(ctx, &desc, NULL);
    if (status == MSDU_OK) {
        status = msdu_start(ctx);
    }
    if (status == MSDU_OK) {
        status = msdu_step(ctx);
    }
    if (status == MSDU_OK) {
        status = msdu_finish(ctx);
    }
    return status;
}

int main(void)
{
    if (strcmp(msdu_version(), HEADER_VERSION) != 0) {
        printf("header %s, library %s\n", HEADER_VERSION, msdu_version());
        return 1;
    }
    msdu_config config = MSDU_CONFIG_INIT;
    config.backend = "local";
    msdu_ctx *ctx = NULL;
    msdu_status status = msdu_create(&config, &ctx);
    if (status == MSDU_OK) {
        status = one_step(ctx);
    }
    if (status != MSDU_OK) {
        printf("%s: %s\n", msdu_status_name(status), msdu_last_error());
    }
    msdu_destroy(ctx);
    return status == MSDU_OK ? 0 : 1;
}
