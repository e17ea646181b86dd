/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All ways in which a small job can go: processes that run the council, messages that take any time
 * and any order, deaths, silence, newcomers. Every state is visited once, depth first.
 */
#ifndef COUNCIL_MODEL_H
#define COUNCIL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What may happen; each number is a budget over a whole run. */
struct scenario {
    const char *name;
    uint32_t ranks;     /* of the launch */
    uint32_t newcomers; /* processes beside them; ranks + newcomers <= MSDU__MEMBERS_MOST */
    uint32_t epochs;    /* beyond so many nobody leaves */
    uint32_t deaths;
    uint32_t silences;  /* one process takes another one for silent, which is alive all the same */
    uint32_t mortal;    /* bits of the processes that may die; 0: all */
    uint32_t quiet;     /* bits of those that may be taken for silent; 0: all */
    uint32_t stopped;   /* bits of those that take no step until all mortal ones are dead */
    uint32_t dead;      /* bits of ranks that are dead from the start */
    uint32_t stateless; /* bits of ranks that hold no whole round */
    uint32_t least;     /* ranks_least */
    uint64_t rounds[5]; /* last whole round of each process */
    bool is_unordered;  /* messages overtake each other; else each connection keeps their order */
    bool is_whole;      /* else what carries no vote and no record arrives at once */
    bool is_prompt;     /* all have left the first epoch at the start */
};

struct verdict {
    uint64_t states;
    uint64_t ends;    /* runs that came to an end */
    uint64_t decided; /* of them: somebody trains in a new epoch */
    uint64_t stopped; /* of them: somebody stopped */
    size_t depth;     /* longest run */
    char fault[512];  /* what was violated, with the events that led there; "": nothing */
};

/* Visit all states, at most `most` of them (then `fault` says so). */
void model_run(const struct scenario *scenario, uint64_t most, struct verdict *verdict_out);

#endif
