/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads trainers, and with them their NCCL (a stand-in), late and each for itself alone, as Python
 * does with extensions; the program knows neither. loader LIBRARY[,LIBRARY] words...
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int run(const char *path, int argc, char **argv)
{
    int (*late_main)(int argc, char **argv) = NULL;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *symbol = library == NULL ? NULL : dlsym(library, "late_main");
    if (symbol == NULL) {
        (void)fprintf(stderr, "loader: %s\n", library == NULL ? dlerror() : "no trainer");
        return 1;
    }
    memcpy(&late_main, &symbol, sizeof(symbol));
    return late_main(argc, argv);
}

int main(int argc, char **argv)
{
    char *rest = argc > 1 ? argv[1] : NULL;
    int code = argc > 1 ? 0 : 1;
    for (char *path = strtok_r(rest, ",", &rest); path != NULL && code == 0;
         path = strtok_r(NULL, ",", &rest)) {
        char id[512];
        (void)snprintf(id, sizeof(id), "%s-next", getenv("TRAINER_ID"));
        (void)setenv("TRAINER_ID", id, 1); /* each job has one of its own */
        code = run(path, argc - 1, argv + 1);
    }
    return code;
}
