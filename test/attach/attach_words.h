/* SPDX-License-Identifier: Apache-2.0 */
/* The words of a trainer's command line: `word` and `name=number`. */
#ifndef TEST_ATTACH_WORDS_H
#define TEST_ATTACH_WORDS_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static inline bool has_word(int argc, char **argv, const char *word)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], word) == 0) {
            return true;
        }
    }
    return false;
}

static inline int number(int argc, char **argv, const char *name, int otherwise)
{
    size_t length = strlen(name);
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], name, length) == 0 && argv[i][length] == '=') {
            return (int)strtol(argv[i] + length + 1, NULL, 10);
        }
    }
    return otherwise;
}

#endif
