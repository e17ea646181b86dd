/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings from any bytes: as ini file, and its lines "NAME=value" as environment. Built with
 * -fsanitize=fuzzer it is a fuzzer; built with FUZZ_CORPUS_RUN it runs the files named as
 * arguments once each, and mutations of them, as an ordinary test.
 */
#include "config/config.h"
#include "fuzz_mutate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define INPUT_MAX_BYTES 65536
#define MUTATED_BYTES   1500000 /* read, of each file's mutations: a second or less */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* What holds for every outcome: a text with an error, a complete description without one. */
static void check_outcome(msdu_status status, const msdu__settings *settings)
{
    char text[32768];
    if (status != MSDU_OK && msdu_last_error()[0] == '\0') {
        abort();
    }
    if (status == MSDU_OK &&
        (msdu__settings_describe(settings, text, sizeof(text)) >= sizeof(text) ||
         settings->rank >= settings->ranks || settings->window == 0 || settings->window < -1)) {
        abort();
    }
}

static void load_as_file(const uint8_t *data, size_t bytes)
{
    msdu__settings settings;
    msdu__log log;
    char path[64];
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes) {
        abort();
    }
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    msdu_config config = {.size = sizeof(config), .config_file = path};
    check_outcome(msdu__settings_load(&config, &settings, &log), &settings);
    close(fd);
}

/* Only names that settings may read: others would change the run of the fuzzer itself. */
static void load_as_environment(char *text)
{
    static const char *const prefixes[] = {"MSDU_", "RANK=", "WORLD_SIZE=", "MASTER_", "SLURM_"};
    msdu__settings settings;
    msdu__log log;
    char *rest = NULL;
    clearenv();
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
            if (strncmp(line, prefixes[i], strlen(prefixes[i])) == 0 &&
                strncmp(line, "MSDU_CONFIG", 11) != 0 && strncmp(line, "MSDU_LOG=", 9) != 0) {
                (void)putenv(line);
            }
        }
    }
    check_outcome(msdu__settings_load(NULL, &settings, &log), &settings);
    clearenv();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static char text[INPUT_MAX_BYTES + 1];
    if (bytes > INPUT_MAX_BYTES) {
        return 0;
    }
    load_as_file(data, bytes);
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    load_as_environment(text);
    return 0;
}

#ifdef FUZZ_CORPUS_RUN
int main(int argc, char **argv)
{
    return fuzz_corpus(LLVMFuzzerTestOneInput, argc, argv, 0, MUTATED_BYTES);
}
#endif
