/* SPDX-License-Identifier: Apache-2.0 */
/* Members that are processes of their own, which do what the test tells them. */
#ifndef MEMBERS_PROCESS_H
#define MEMBERS_PROCESS_H

#include "members/members.h"

#include <sys/types.h>

#define PROCESSES_MOST 8
#define TEXT_BYTES     512

/* How a process is started. */
struct launch {
    int32_t rank;
    int32_t ranks;
    const char *rendezvous;
    const char *secret;
    uint64_t deadline_ns;
    msdu__members_settings settings;
};

/* What a call came to. */
struct outcome {
    msdu_status status;
    msdu__epoch epoch;
    bool has_newcomer;
    bool is_awaited;
    char text[TEXT_BYTES]; /* of a failure; or a value */
};

struct process {
    pid_t pid; /* 0: none */
    int fd;
};

/* Start a process that opens its members' layer at once; take() has what came of it. */
void process_start(struct process *process, const struct launch *launch);

/* What it shall do; each has one outcome. */
void process_next(struct process *process, uint64_t round);
void process_next_report(struct process *process, const msdu__report *report);
void process_ask(struct process *process); /* has_newcomer, is_awaited */
void process_set(struct process *process, const char *value);
void process_get(struct process *process);
void process_hub(struct process *process);  /* the epoch's hub, found by the store: open, bye */
void process_fork(struct process *process); /* a child; the outcome's text is its number */
/* Close and end: it must leave no descriptor and no thread. */
void process_close(struct process *process);

/* The next outcome; fails the test if there is none within the limit. */
struct outcome process_take(struct process *process, int limit_ms);
/* Is there none within so many ms? */
bool process_is_quiet(struct process *process, int span_ms);
/* Wait for its end after process_close(), or kill it first. */
void process_ended(struct process *process);
void process_kill(struct process *process);
/* All that are left, whatever became of the test. */
void process_kill_all(void);

#endif
