/* SPDX-License-Identifier: Apache-2.0 */
/* A job of real processes: fork and exec, pipes, limits; kills its own children only. */
#include "processes.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define POLL_MS    20
#define WORD_BYTES 1024
#define JOBS_MOST  4

static job *jobs[JOBS_MOST];

static long now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (long)time.tv_sec * 1000 + (long)time.tv_nsec / 1000000;
}

/* --- making a job --- */

static void remember(job *j)
{
    for (int i = 0; i < JOBS_MOST; i++) {
        if (jobs[i] == NULL) {
            jobs[i] = j;
            return;
        }
    }
    abort();
}

job *job_new(int count)
{
    char modules[PATH_MAX];
    job *j = calloc(1, sizeof(*j));
    if (j == NULL || count > JOB_RANKS_MOST) {
        abort();
    }
    remember(j);
    j->count = count;
    if (!job_make_folder(j->folder)) {
        perror("job folder");
        abort();
    }
    job_beside("fault_rank", j->program);
    job_module_folder(modules);
    job_set(j, JOB_ALL, "MSDU_MODULE_PATH=%s", modules);
    job_set(j, JOB_ALL, "MSDU_RANKS=%d", count);
    job_set(j, JOB_ALL, "MSDU_RENDEZVOUS=file://%s", j->folder);
    for (int i = 0; i < count; i++) {
        j->ranks[i].out = -1;
        job_set(j, i, "MSDU_RANK=%d", i);
    }
    return j;
}

static void add_word(char *words[], int *count, const char *word)
{
    if (*count == JOB_WORDS_MOST - 1) {
        abort();
    }
    words[*count] = strdup(word);
    if (words[*count] == NULL) {
        abort();
    }
    ++*count;
}

static void set_one(job_rank *r, const char *word)
{
    size_t name = strcspn(word, "=") + 1;
    for (int i = 0; i < r->environment_count; i++) {
        if (strncmp(r->environment[i], word, name) == 0) {
            free(r->environment[i]);
            r->environment[i] = r->environment[--r->environment_count];
            break;
        }
    }
    add_word(r->environment, &r->environment_count, word);
}

void job_set(job *j, int rank, const char *format, ...)
{
    char word[PATH_MAX + WORD_BYTES];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(word, sizeof(word), format, args);
    va_end(args);
    for (int i = 0; i < j->count; i++) {
        if (rank == JOB_ALL || rank == i) {
            set_one(&j->ranks[i], word);
        }
    }
}

void job_argument(job *j, int rank, const char *format, ...)
{
    char word[PATH_MAX + WORD_BYTES];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(word, sizeof(word), format, args);
    va_end(args);
    for (int i = 0; i < j->count; i++) {
        if (rank == JOB_ALL || rank == i) {
            add_word(j->ranks[i].arguments, &j->ranks[i].argument_count, word);
        }
    }
}

/* --- running it --- */

/* What a launcher or a person may have set must not reach the ranks. */
static bool is_ours(const char *entry)
{
    static const char *const prefixes[] = {"MSDU_", "RANK=",  "WORLD_SIZE=", "OMPI_",
                                           "PMI_",  "SLURM_", "MASTER_"};
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
        if (strncmp(entry, prefixes[i], strlen(prefixes[i])) == 0) {
            return true;
        }
    }
    return false;
}

static char **make_environment(const job_rank *r)
{
    size_t count = 0;
    size_t used = 0;
    while (environ[count] != NULL) {
        count++;
    }
    char **all = calloc(count + JOB_WORDS_MOST + 1, sizeof(*all));
    if (all == NULL) {
        abort();
    }
    for (size_t i = 0; i < count; i++) {
        if (!is_ours(environ[i])) {
            all[used++] = environ[i];
        }
    }
    for (int i = 0; i < r->environment_count; i++) {
        all[used++] = r->environment[i];
    }
    return all;
}

/* In the child. A rank must not outlive its test, whatever ends that. */
static void become_rank(const job *j, job_rank *r, char **environment, int out)
{
    char *arguments[JOB_WORDS_MOST + 2] = {NULL};
    char name[PATH_MAX];
    (void)snprintf(name, sizeof(name), "%s", j->program);
    arguments[0] = name;
    for (int i = 0; i < r->argument_count; i++) {
        arguments[i + 1] = r->arguments[i];
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)signal(SIGPIPE, SIG_DFL);
    (void)dup2(out, STDOUT_FILENO);
    (void)dup2(out, STDERR_FILENO);
    (void)execve(j->program, arguments, environment);
    (void)dprintf(STDERR_FILENO, "cannot run %s: %s\n", j->program, strerror(errno));
    _exit(127);
}

static bool start_one(job *j, int rank)
{
    job_rank *r = &j->ranks[rank];
    int ends[2];
    if (r->pid != 0 || pipe2(ends, O_CLOEXEC) != 0) {
        return false;
    }
    char **environment = make_environment(r);
    r->pid = fork();
    if (r->pid == 0) {
        become_rank(j, r, environment, ends[1]);
    }
    free(environment);
    (void)close(ends[1]);
    r->out = ends[0];
    return r->pid > 0 && fcntl(r->out, F_SETFL, O_NONBLOCK) == 0;
}

bool job_start(job *j, int rank)
{
    bool is_good = true;
    for (int i = 0; i < j->count; i++) {
        if (rank == JOB_ALL || rank == i) {
            is_good = start_one(j, i) && is_good;
        }
    }
    return is_good;
}

static void read_one(job_rank *r)
{
    while (r->out >= 0) {
        char rest[256];
        size_t room = sizeof(r->text) - 1 - r->used;
        char *to = room > 0 ? r->text + r->used : rest;
        ssize_t got = read(r->out, to, room > 0 ? room : sizeof(rest));
        if (got > 0) {
            r->used += room > 0 ? (size_t)got : 0;
            continue;
        }
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        }
        (void)close(r->out);
        r->out = -1;
    }
}

/* One look at all ranks; true if a rank that counts still runs. */
static bool look(job *j, int except, int wait_ms)
{
    struct pollfd polls[JOB_RANKS_MOST];
    nfds_t count = 0;
    bool is_running = false;
    for (int i = 0; i < j->count; i++) {
        if (j->ranks[i].out >= 0) {
            polls[count++] = (struct pollfd){.fd = j->ranks[i].out, .events = POLLIN};
        }
    }
    (void)poll(polls, count, wait_ms);
    for (int i = 0; i < j->count; i++) {
        job_rank *r = &j->ranks[i];
        if (r->pid <= 0) {
            continue;
        }
        r->is_over = r->is_over || waitpid(r->pid, &r->wait_status, WNOHANG) == r->pid;
        read_one(r);
        is_running = is_running || (i != except && !r->is_over);
    }
    return is_running;
}

static void show(const job *j, const char *what)
{
    (void)fprintf(stderr, "%s\n", what);
    for (int i = 0; i < j->count; i++) {
        const job_rank *r = &j->ranks[i];
        (void)fprintf(stderr, "-- rank %d: %s, wait status %#x, printed:\n%.*s\n", i,
                      r->pid == 0  ? "not started"
                      : r->is_over ? "ended"
                                   : "running",
                      (unsigned)r->wait_status, (int)r->used, r->text);
    }
}

static void kill_all(job *j)
{
    for (int i = 0; i < j->count; i++) {
        job_rank *r = &j->ranks[i];
        if (r->pid > 0 && !r->is_over) {
            (void)kill(r->pid, SIGKILL);
            (void)waitpid(r->pid, &r->wait_status, 0);
            r->is_over = true;
        }
        read_one(r);
    }
}

bool job_wait_text(job *j, int rank, const char *what, int limit_ms)
{
    const job_rank *r = &j->ranks[rank];
    long end = now_ms() + limit_ms;
    while (strstr(r->text, what) == NULL) {
        bool is_over = r->is_over && r->out < 0;
        if (is_over || now_ms() > end) {
            show(j, "a rank did not print what it was to print");
            return false;
        }
        (void)look(j, JOB_ALL, POLL_MS);
    }
    return true;
}

bool job_wait(job *j, int except, int limit_ms)
{
    long end = now_ms() + limit_ms;
    while (look(j, except, POLL_MS)) {
        if (now_ms() > end) {
            show(j, "ranks hang: they were killed at the limit");
            kill_all(j);
            return false;
        }
    }
    (void)look(j, except, 0);
    return true;
}

void job_free(job *j)
{
    kill_all(j);
    for (int i = 0; i < j->count; i++) {
        job_rank *r = &j->ranks[i];
        for (int k = 0; k < r->environment_count; k++) {
            free(r->environment[k]);
        }
        for (int k = 0; k < r->argument_count; k++) {
            free(r->arguments[k]);
        }
    }
    job_remove_folder(j->folder);
    for (int i = 0; i < JOBS_MOST; i++) {
        jobs[i] = jobs[i] == j ? NULL : jobs[i];
    }
    free(j);
}

void job_free_all(void)
{
    for (int i = 0; i < JOBS_MOST; i++) {
        if (jobs[i] != NULL) {
            job_free(jobs[i]);
        }
    }
}

/* --- what ranks said --- */

const char *job_value(const job *j, int rank, int of, const char *key)
{
    static char values[8][WORD_BYTES];
    static unsigned next;
    char *value = values[next++ % 8];
    char prefix[64];
    value[0] = '\0';
    int length = snprintf(prefix, sizeof(prefix), "%s.%d ", key, of);
    for (const char *at = j->ranks[rank].text; at != NULL && *at != '\0';) {
        if (strncmp(at, prefix, (size_t)length) == 0) {
            (void)snprintf(value, WORD_BYTES, "%.*s", (int)strcspn(at + length, "\n"), at + length);
            break;
        }
        at = strchr(at, '\n');
        at = at == NULL ? NULL : at + 1;
    }
    return value;
}

int job_lines(const job *j, int rank, const char *what)
{
    int count = 0;
    for (const char *at = j->ranks[rank].text; (at = strstr(at, what)) != NULL;) {
        count++;
        at += strcspn(at, "\n");
    }
    return count;
}

bool job_exited(const job *j, int rank, int code)
{
    const job_rank *r = &j->ranks[rank];
    return r->is_over && WIFEXITED(r->wait_status) && WEXITSTATUS(r->wait_status) == code;
}
