/* SPDX-License-Identifier: Apache-2.0 */
/* What a call must answer. */
#include "expect.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

void expect_words(const char *text, const char *words)
{
    char word[256];
    for (const char *at = words; *at != '\0'; at += *at == '|' ? 1 : 0) {
        size_t length = strcspn(at, "|");
        (void)snprintf(word, sizeof(word), "%.*s", (int)length, at);
        ck_assert_msg(strstr(text, word) != NULL, "'%s' is not in: %s", word, text);
        at += length;
    }
}

void expect_status(msdu_status got, msdu_status wanted, const char *words)
{
    ck_assert_msg(got == wanted, "%s instead of %s: %s", msdu_status_name(got),
                  msdu_status_name(wanted), msdu_last_error());
    expect_words(msdu_last_error(), words);
}

msdu_ctx *expect_context(const msdu_config *config, bool has_parameter)
{
    static float memory[2][8];
    msdu_ctx *ctx = NULL;
    msdu_config own = *config;
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    own.size = sizeof(own);
    own.ranks = 1;
    desc.name = "a";
    desc.parameter = has_parameter ? memory[0] : NULL;
    desc.gradient = memory[1];
    desc.count = 8;
    ck_assert_int_eq(msdu_create(&own, &ctx), MSDU_OK);
    ck_assert_int_eq(msdu_tensor_add(ctx, &desc, NULL), MSDU_OK);
    return ctx;
}
