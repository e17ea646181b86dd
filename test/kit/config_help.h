/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of settings share: a clean environment, an ini file, a log that is kept. */
#ifndef TEST_CONFIG_HELP_H
#define TEST_CONFIG_HELP_H

#include "config/table.h"
#include "expect.h"
#include "suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char help_log[16384];

static inline void keep_line(void *user, msdu_log_level level, const char *text)
{
    (void)user;
    size_t used = strlen(help_log);
    snprintf(help_log + used, sizeof(help_log) - used, "%d %s\n", (int)level, text);
}

static const char *ini_path(void)
{
    static char path[160];
    snprintf(path, sizeof(path), "%s/config-%ld.ini", suite_folder(), (long)getpid());
    return path;
}

/* Checked fixture: without forks, tests share the environment. */
static void clean_environment(void)
{
    static const char *const others[] = {
        "RANK",     "WORLD_SIZE",   "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK",
        "PMI_SIZE", "SLURM_PROCID", "SLURM_NTASKS",         "MASTER_ADDR",          "MASTER_PORT"};
    const msdu__setting *setting = NULL;
    for (size_t i = 0; (setting = msdu__setting_at(i)) != NULL; i++) {
        unsetenv(setting->environment);
    }
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        unsetenv(others[i]);
    }
    unsetenv("MSDU_SLICE_BITES");
    unsetenv("MSDU_MODULE_PATH");
    unsetenv("MSDU_LIBRARY");
    unsetenv("MSDU_WIRE_ROUNDING"); /* of a case; gone since 0.3 */
    unlink(ini_path());
    help_log[0] = '\0';
}

/* An ini file with the given text; the path is valid until the next call. */
static const char *ini_file(const char *text)
{
    const char *path = ini_path();
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
    return path;
}

static inline msdu_status load(const msdu_config *config, msdu__settings *settings_out)
{
    msdu__log log;
    return msdu__settings_load(config, settings_out, &log);
}

/* The load must fail with a text that holds all of the words, which are separated by '|'. */
static inline void expect_failure(const msdu_config *config, const char *words)
{
    msdu__settings settings;
    expect_status(load(config, &settings), MSDU_ERR_INVALID, words);
}

static inline int run_suite(const char *name, void (*add_tests)(TCase *tcase))
{
    Suite *suite = suite_create(name);
    add_tests(suite_case(suite, name, 20, clean_environment, clean_environment));
    return suite_run(suite);
}

#endif
