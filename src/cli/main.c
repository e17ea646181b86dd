/* SPDX-License-Identifier: Apache-2.0 */
/* The `msdu` command: finds the command named and calls it. Options by argp, which is part of libc
 * and so costs no dependency. */
#include "cli.h"

#include <msdu/msdu.h>

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"info", msdu__cmd_info},
    {"bench", msdu__cmd_bench},
    {"plan", msdu__cmd_plan},
    {"run", msdu__cmd_run},
};

static const char doc[] =
    "Communication-reducing data-parallel training.\n\n"
    "Commands:\n"
    "  info    version, backends, policies, corrections, wire formats, every setting\n"
    "  bench   measure this machine: kernels, hooks, allreduce, overlap, scale\n"
    "  plan    what-if: interval, wire and waiting on a given network; stages of a pipeline\n"
    "  run     start a trainer that was not changed with the library before its MPI\n\v"
    "'msdu COMMAND --help' describes a command.";

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (strcmp(commands[i].name, name) == 0) {
            return &commands[i];
        }
    }
    return NULL;
}

/* Where the command's own arguments begin. */
typedef struct choice {
    const struct command *command;
    int first;
} choice;

static error_t on_option(int key, char *arg, struct argp_state *state)
{
    choice *chosen = state->input;
    if (key == ARGP_KEY_NO_ARGS) {
        argp_usage(state);
    }
    if (key != ARGP_KEY_ARG) {
        return ARGP_ERR_UNKNOWN;
    }
    chosen->command = find_command(arg);
    chosen->first = state->next - 1;
    state->next = state->argc; /* the rest is the command's */
    if (chosen->command == NULL) {
        argp_error(state, "no command '%s'", arg);
    }
    return 0;
}

static void print_version(FILE *stream, struct argp_state *state)
{
    (void)state;
    fprintf(stream, "msdu %s\n", msdu_version());
}

int main(int argc, char **argv)
{
    static const struct argp argp = {.parser = on_option, .args_doc = "COMMAND ...", .doc = doc};
    choice chosen = {NULL, 0};
    char name[64];
    argp_program_version_hook = print_version;
    argp_err_exit_status = MSDU__EXIT_USAGE;
    error_t error = argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &chosen);
    if (error != 0 || chosen.command == NULL) {
        return MSDU__EXIT_USAGE;
    }
    snprintf(name, sizeof(name), "msdu %s", chosen.command->name);
    argv[chosen.first] = name;
    int status = chosen.command->run(argc - chosen.first, argv + chosen.first);
    /* A full disk under standard output shows only here. */
    if (fflush(stdout) != 0 || ferror(stdout) != 0) {
        perror("msdu: standard output");
        return EXIT_FAILURE;
    }
    return status;
}
