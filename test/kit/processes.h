/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job of real processes for tests: starts ranks, collects what they print, ends them at a limit.
 *
 * A rank is the program fault_rank (or the example trainer). It prints lines "key.RANK value"; a
 * job keeps them until job_end(). Nothing here asserts: a job that could not be started or that had
 * to be killed says so, with what its ranks printed, on standard error.
 */
#ifndef TEST_PROCESSES_H
#define TEST_PROCESSES_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define JOB_RANKS_MOST   4
#define JOB_WORDS_MOST   32 /* arguments, and environment variables, of a rank */
#define JOB_OUTPUT_BYTES 65536
#define JOB_ALL          (-1) /* instead of a rank */

typedef struct job_rank {
    char *environment[JOB_WORDS_MOST];
    char *arguments[JOB_WORDS_MOST];
    int environment_count;
    int argument_count;
    pid_t pid;       /* 0: not started */
    int out;         /* what it prints, -1: closed */
    bool is_over;    /* waited for */
    int wait_status; /* as waitpid() gave it */
    char text[JOB_OUTPUT_BYTES];
    size_t used;
} job_rank;

typedef struct job {
    int count;
    char folder[PATH_MAX];  /* of this job alone; ranks meet there */
    char program[PATH_MAX]; /* what ranks run */
    job_rank ranks[JOB_RANKS_MOST];
} job;

/* Is the module gloo there? If not, say so; the test is then skipped. */
bool job_is_possible(void);

/* A job of fault_rank: ranks and rank are set, ranks meet by file in job->folder. */
job *job_new(int count);
/* Kill what still runs, wait for it, remove the folder. */
void job_free(job *j);
/* The same for all jobs there are: a test that failed left before its job_free(). */
void job_free_all(void);

/* Environment variable "NAME=value" of a rank or of JOB_ALL; the last one counts. */
void job_set(job *j, int rank, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Argument of a rank or of JOB_ALL. */
void job_argument(job *j, int rank, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Start a rank or JOB_ALL. */
bool job_start(job *j, int rank);
/* Read what a rank prints until `what` is in it. False: it ended first, or the limit passed. */
bool job_wait_text(job *j, int rank, const char *what, int limit_ms);
/* Read until all started ranks but `except` (JOB_ALL: none) ended. At the limit they are killed,
 * and the answer is false. */
bool job_wait(job *j, int except, int limit_ms);

/* Value of the first line "key.RANK value" of a rank, "" if there is none; static, for one use at a
 * time per key. With threads in a process, `of` is another rank than the process's. */
const char *job_value(const job *j, int rank, int of, const char *key);
/* Lines of a rank that contain `what`. */
int job_lines(const job *j, int rank, const char *what);
/* Did the rank end by exit(code)? */
bool job_exited(const job *j, int rank, int code);

/* A folder beside the running test's program, such as "../lib". */
void job_beside(const char *name, char path_out[PATH_MAX]);
/* Where backend modules are: MSDU_MODULE_PATH, else beside the test's folder. */
void job_module_folder(char path_out[PATH_MAX]);
/* A new folder for a job; all are removed when the test's program ends. */
bool job_make_folder(char path_out[PATH_MAX]);
/* A folder with the files in it. */
void job_remove_folder(const char *folder);
/* A TCP port of the loopback address that nobody used a moment ago; -1: none. */
int job_free_port(void);

#endif
