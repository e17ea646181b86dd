/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads a trainer, and with it its NCCL (a stand-in), late and for itself alone, as Python does
 * with extensions; the program knows neither.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    int (*run)(int argc, char **argv) = NULL;
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    void *symbol = library == NULL ? NULL : dlsym(library, "late_main");
    if (symbol == NULL) {
        (void)fprintf(stderr, "loader: %s\n", library == NULL ? dlerror() : "no trainer");
        return 1;
    }
    memcpy(&run, &symbol, sizeof(symbol));
    return run(argc - 1, argv + 1);
}
