/* SPDX-License-Identifier: Apache-2.0 */
/* What a call must answer. */
#ifndef TEST_EXPECT_H
#define TEST_EXPECT_H

#include <stdbool.h>

#include <msdu/msdu.h>

/* Assert that a text holds all of the words, which are separated by '|'. */
void expect_words(const char *text, const char *words);
/* Assert that a call returned this, with these words in the thread's error text. */
void expect_status(msdu_status got, msdu_status wanted, const char *words);
/* A context of one rank with these settings, and one tensor "a" of 8 floats: a gradient and, if so
 * asked, a parameter. */
msdu_ctx *expect_context(const msdu_config *config, bool has_parameter);

#endif
