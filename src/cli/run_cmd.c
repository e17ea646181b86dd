/* SPDX-License-Identifier: Apache-2.0 */
/* msdu run: starts a trainer with libmsdu_preload before its MPI. */
#include "cli.h"

#include <argp.h>
#include <elf.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attach/settings.h"

#define EXIT_NOT_RUN 126 /* as shells: found, but cannot be run */
#define EXIT_NO_FILE 127
#define TEXT_BYTES   512

static const char doc[] =
    "Run a trainer that was not changed: its MPI_Allreduce calls that are gradients go through the "
    "library, all others as they are. Under mpirun: mpirun -n 4 msdu run -- ./trainer args\v"
    "Settings are MSDU_* variables, see 'msdu info'. A setting that cannot hold ends it with "
    "status 2 "
    "before the trainer starts.";

static error_t on_option(int key, char *arg, struct argp_state *state)
{
    int *first = state->input;
    if (key == ARGP_KEY_NO_ARGS) {
        argp_usage(state);
    }
    if (key != ARGP_KEY_ARG) {
        return ARGP_ERR_UNKNOWN;
    }
    (void)arg;
    *first = state->next - 1;
    state->next = state->argc;
    return 0;
}

/* Beside the command in a build folder, or as it is installed. */
static bool find_library(char path[PATH_MAX])
{
    static const char *const places[] = {"/../lib/libmsdu_preload.so",
                                         "/" MSDU_PRELOAD_FROM_BIN "/libmsdu_preload.so"};
    char folder[PATH_MAX / 2];
    ssize_t length = readlink("/proc/self/exe", folder, sizeof(folder) - 1);
    folder[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash != NULL) {
        *slash = '\0';
    }
    for (size_t i = 0; slash != NULL && i < sizeof(places) / sizeof(places[0]); i++) {
        char file[PATH_MAX];
        (void)snprintf(file, sizeof(file), "%s%s", folder, places[i]);
        if (realpath(file, path) != NULL) {
            return true;
        }
    }
    return false;
}

/* A list of libraries may hold neither spaces nor colons. */
static bool put_in_front(const char *path)
{
    const char *others = getenv("LD_PRELOAD");
    if (strpbrk(path, " :") != NULL) {
        (void)fprintf(stderr, "msdu run: LD_PRELOAD cannot name %s: it has a space or colon\n",
                      path);
        return false;
    }
    size_t bytes = strlen(path) + (others == NULL ? 0 : strlen(others)) + 2;
    char *list = malloc(bytes);
    if (list == NULL) {
        return false;
    }
    (void)snprintf(list, bytes, "%s%s%s", path, others == NULL || *others == '\0' ? "" : ":",
                   others == NULL ? "" : others);
    int code = setenv("LD_PRELOAD", list, 1);
    free(list);
    return code == 0;
}

/* --- settings --- */

static void print_rank(void)
{
    int place = msdu__attach_place();
    (void)fprintf(stderr, "msdu run: ");
    if (place >= 0) {
        (void)fprintf(stderr, "rank %d: ", place);
    }
}

/* Once in a job, as far as that can be told. */
static void warn_unknown(void)
{
    char text[TEXT_BYTES];
    bool is_slip = false;
    for (size_t at = 0;
         msdu__attach_place() <= 0 && msdu__attach_unknown(&at, text, sizeof(text), &is_slip);) {
        (void)fprintf(stderr, "msdu run: ignored: %s\n", text);
    }
}

/* Before the trainer starts: by each rank, for the first one to end is the end of the others. */
static bool are_settings_good(void)
{
    char text[TEXT_BYTES];
    if (msdu__attach_has_bad_setting(NULL, text, sizeof(text))) {
        print_rank();
        (void)fprintf(stderr, "%s\n", text);
        return false;
    }
    warn_unknown();
    return true;
}

/* --- will it take? --- */

/* The file that execvp() would run; false: none. */
static bool find_program(const char *name, char path[PATH_MAX])
{
    const char *list = getenv("PATH");
    if (strchr(name, '/') != NULL || list == NULL) {
        (void)snprintf(path, PATH_MAX, "%s", name);
        return access(path, X_OK) == 0;
    }
    while (*list != '\0') {
        size_t length = strcspn(list, ":");
        (void)snprintf(path, PATH_MAX, "%.*s/%s", (int)length, length > 0 ? list : ".", name);
        if (access(path, X_OK) == 0) {
            return true;
        }
        list += length;
        list += *list == ':';
    }
    return false;
}

/* An ELF program without a dynamic loader does not read LD_PRELOAD; a script's interpreter does. */
static bool is_static(const char *path)
{
    Elf64_Ehdr header;
    bool has_interpreter = false;
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return false;
    }
    bool is_elf = fread(&header, sizeof(header), 1, file) == 1 &&
                  memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 &&
                  header.e_ident[EI_CLASS] == ELFCLASS64;
    for (unsigned i = 0; is_elf && i < header.e_phnum; i++) {
        Elf64_Phdr part;
        long at = (long)(header.e_phoff + i * (unsigned long)header.e_phentsize);
        if (fseek(file, at, SEEK_SET) != 0 || fread(&part, sizeof(part), 1, file) != 1) {
            break;
        }
        has_interpreter = has_interpreter || part.p_type == PT_INTERP;
    }
    (void)fclose(file);
    return is_elf && !has_interpreter;
}

/* The program keeps this process; a launcher's ranks are its children. */
static void leave_word(void)
{
    char text[32];
    long process = (long)getpid();
    (void)snprintf(text, sizeof(text), "%ld", msdu__attach_place() >= 0 ? process : -process);
    (void)setenv(MSDU__RUN_VARIABLE, text, 1);
}

static int run(char **argv)
{
    char library[PATH_MAX];
    char program[PATH_MAX];
    if (!find_library(library)) {
        (void)fprintf(stderr, "msdu run: libmsdu_preload.so is not beside this command\n");
        return EXIT_NOT_RUN;
    }
    if (find_program(argv[0], program) && is_static(program)) {
        (void)fprintf(stderr,
                      "msdu run: %s is linked statically, so nothing can stand before its "
                      "MPI; it runs as it is\n",
                      program);
    } else if (!put_in_front(library)) {
        return EXIT_NOT_RUN;
    }
    leave_word();
    (void)execvp(argv[0], argv);
    int error = errno;
    (void)fprintf(stderr, "msdu run: %s: %s\n", argv[0], strerror(error));
    return error == ENOENT ? EXIT_NO_FILE : EXIT_NOT_RUN;
}

int msdu__cmd_run(int argc, char **argv)
{
    static const struct argp argp = {
        .parser = on_option, .args_doc = "[--] PROGRAM [ARGUMENT...]", .doc = doc};
    int first = argc;
    error_t error = argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &first);
    if (error != 0 || first >= argc) {
        return MSDU__EXIT_USAGE;
    }
    return are_settings_good() ? run(argv + first) : MSDU__EXIT_USAGE;
}
