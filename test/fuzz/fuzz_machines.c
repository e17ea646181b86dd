/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of machines from any bytes; built and run as fuzz_profile.c. */
#include "cli/machines.h"
#include "fuzz_mutate.h"

#include <stdlib.h>

#define MUTATED_BYTES 4000000 /* read, of each file's mutations */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* What holds for whatever was read. */
static void check_read(const msdu__machines *m)
{
    for (uint32_t i = 0; i < m->count; i++) {
        const msdu__machine *machine = &m->list[i];
        if (machine->name[0] == '\0' || !(machine->speed > 0) || !(machine->memory_bytes >= 0) ||
            !(machine->card_rate >= 0)) {
            abort();
        }
        for (uint32_t j = 0; j < m->count; j++) {
            size_t at = (size_t)i * m->count + j;
            if (i != j && (!(m->link_rate[at] > 0) || !(m->latency_ns[at] >= 0))) {
                abort();
            }
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    msdu__machines m;
    char why[128] = "";
    char *text = fuzz_copy(data, bytes);
    if (msdu__machines_parse(text, bytes, &m, why, sizeof(why))) {
        check_read(&m);
    } else if (why[0] == '\0' || m.list != NULL) {
        abort();
    }
    msdu__machines_free(&m);
    free(text);
    return 0;
}

#ifdef FUZZ_CORPUS_RUN
int main(int argc, char **argv)
{
    return fuzz_corpus(LLVMFuzzerTestOneInput, argc, argv, SIZE_MAX, MUTATED_BYTES);
}
#endif
