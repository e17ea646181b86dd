/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank for the tests of faults: trains a toy model through the public header, has an accident if
 * it is told to, and prints what became of it as lines "key.RANK value".
 *
 * usage: fault_rank [key=value ...]
 *   steps=N        steps to train (12)
 *   threads=N      N ranks as threads over the backend "local" instead of one rank
 *   fault=NAME     kill, stop, exit, destroy, leave (finish early), sleep (wait 60 s before the
 *                  start), nan, infinity; tensors: rename, recount, retype, add, remove, value
 *   who=RANK       that has it, among threads (all)
 *   at=STEP        of the accident (0)
 *   what=KIND      gradient (default) or parameter: half of the tensors of that kind were announced
 *   rollback=1     after a failure
 *   rejoin=1       after a lost rank: roll back, and go on in a new job with rank 0's parameters;
 *                  a rank that left (fault=destroy) is a newcomer there
 *   newcomer=1     begin in that new job
 *   pause_ms=N     in every step
 *   save=STEP      write a checkpoint after that step, and go on
 *   load=1         go on from a checkpoint
 *   checkpoint=DIR where they are, a file a rank
 *   file_bytes=N   largest file this process may write: a disk that is full
 *
 * A rank keeps a copy of its parameters, as its own update left them or as a wait that succeeded
 * gave them back. When the library fails, the parameters must be that copy, bit by bit:
 * "params.RANK kept"; otherwise "params.RANK other".
 */
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <msdu/msdu.h>

#include "fault_model.h"
#include "fault_state.h"

#define RANKS_MOST   8
#define HALF_WAIT_MS 150 /* the announced half is on its way to the others by then */

typedef struct plan {
    int steps;
    int threads;
    char fault[16];
    int who; /* has it; -1: all */
    int at;
    msdu_what what;
    bool is_rolled_back;
    bool is_rejoined;
    bool is_newcomer;
    int pause_ms;
    long file_bytes; /* -1: no limit */
    int save;        /* 1 + step, 0: never */
    bool is_loaded;
    char checkpoint[PATH_MAX];
} plan;

typedef struct rank_self {
    const plan *plan;
    int rank;
    msdu_ctx *ctx;
    bool is_again; /* in the new job */
    fault_model model;
    uint64_t history; /* hash of the parameters of all steps */
    int step;
    double progress;   /* the step, as a tensor of the new job */
    const char *where; /* the call that failed */
} rank_self;

static void sleep_ms(int ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000L};
    (void)nanosleep(&time, NULL);
}

/* --- accidents --- */

static bool has_fault(const rank_self *self, const char *name)
{
    bool is_own = self->plan->who < 0 || self->plan->who == self->rank;
    return !self->is_again && is_own && strcmp(self->plan->fault, name) == 0;
}

/* Half of the tensors of a kind were announced; false: leave. */
static bool pass_half(rank_self *self, msdu_what what)
{
    if (self->step != self->plan->at || what != self->plan->what) {
        return true;
    }
    bool is_kill = has_fault(self, "kill");
    if (is_kill || has_fault(self, "stop") || has_fault(self, "exit")) {
        printf("half.%d %d\n", self->rank, self->step);
        sleep_ms(HALF_WAIT_MS);
    }
    if (is_kill || has_fault(self, "stop")) {
        (void)raise(is_kill ? SIGKILL : SIGSTOP);
    }
    if (has_fault(self, "exit")) {
        exit(0);
    }
    return !has_fault(self, "destroy");
}

static void spoil(rank_self *self, msdu_what what)
{
    bool is_nan = has_fault(self, "nan");
    if (self->step == self->plan->at && what == self->plan->what &&
        (is_nan || has_fault(self, "infinity"))) {
        float *values = what == MSDU_GRADIENT ? self->model.gradient[2] : self->model.parameter[2];
        values[1000] = is_nan ? NAN : -INFINITY;
        fault_model_keep(&self->model);
    }
}

static msdu_status add_tensor(rank_self *self, uint64_t t)
{
    char name[32];
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    bool is_first = t == 1;
    (void)snprintf(name, sizeof(name), "layer%d.weight", (int)t);
    desc.name = name;
    desc.parameter = self->model.parameter[t];
    desc.gradient = self->model.gradient[t];
    desc.count = fault_model_count(t);
    if (is_first && has_fault(self, "rename")) {
        desc.name = "another.name";
    }
    if (is_first && has_fault(self, "recount")) {
        desc.count--;
    }
    if (is_first && has_fault(self, "retype")) {
        desc.dtype = MSDU_BFLOAT16;
    }
    if (is_first && has_fault(self, "value")) {
        self->model.parameter[t][7] += 1.0F;
    }
    return msdu_tensor_add(self->ctx, &desc, NULL);
}

/* Survivors of a late mean notice at different steps: rank 0's step becomes everyone's. */
static msdu_status add_progress(rank_self *self)
{
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    self->progress = self->step;
    desc.name = "progress";
    desc.role = MSDU_ROLE_FIXED;
    desc.parameter = &self->progress;
    desc.dtype = MSDU_FLOAT64;
    desc.count = 1;
    return msdu_tensor_add(self->ctx, &desc, NULL);
}

static msdu_status add_tensors(rank_self *self)
{
    uint64_t count = has_fault(self, "remove") ? FAULT_TENSORS - 1 : FAULT_TENSORS;
    for (uint64_t t = 0; t < count; t++) {
        msdu_status status = add_tensor(self, t);
        if (status != MSDU_OK) {
            return status;
        }
    }
    if (!has_fault(self, "add")) {
        return MSDU_OK;
    }
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    desc.name = "one.more";
    desc.gradient = self->model.gradient[0];
    desc.parameter = self->model.parameter[0];
    desc.count = 1;
    return msdu_tensor_add(self->ctx, &desc, NULL);
}

/* --- training --- */

/* Rank, level and text on one line; a line break inside would be an error of the library. */
static void print_log(void *user, msdu_log_level level, const char *text)
{
    const rank_self *self = user;
    printf("log.%d %d %s\n", self->rank, (int)level, text);
}

static msdu_status announce(rank_self *self, msdu_what what, bool *is_leaving_out)
{
    spoil(self, what);
    /* last tensor first, as a backward pass does: slices leave in this order */
    for (uint32_t t = FAULT_TENSORS; t-- > 0;) {
        if (t == FAULT_TENSORS / 2 - 1 && !pass_half(self, what)) {
            *is_leaving_out = true;
            return MSDU_OK;
        }
        msdu_status status = msdu_tensor_ready(self->ctx, t, what);
        if (status != MSDU_OK) {
            return status;
        }
    }
    return MSDU_OK;
}

static msdu_status wait_parameters(rank_self *self)
{
    for (uint32_t t = 0; t < FAULT_TENSORS; t++) {
        msdu_status status = msdu_tensor_wait(self->ctx, t, MSDU_PARAMETER);
        if (status != MSDU_OK) {
            return status;
        }
    }
    self->history = fault_model_hash(&self->model, self->history);
    fault_model_keep(&self->model);
    return MSDU_OK;
}

static msdu_status train_step(rank_self *self, bool *is_leaving_out)
{
    fault_model_gradients(&self->model, self->rank, self->step);
    self->where = "ready gradient";
    msdu_status status = announce(self, MSDU_GRADIENT, is_leaving_out);
    for (uint32_t t = 0; t < FAULT_TENSORS && status == MSDU_OK && !*is_leaving_out; t++) {
        self->where = "wait gradient";
        status = msdu_tensor_wait(self->ctx, t, MSDU_GRADIENT);
        if (status == MSDU_OK) {
            fault_model_update(&self->model, t);
        }
    }
    if (status == MSDU_OK && !*is_leaving_out) {
        self->where = "ready parameter";
        status = announce(self, MSDU_PARAMETER, is_leaving_out);
    }
    if (status == MSDU_OK && !*is_leaving_out) {
        self->where = "step";
        status = msdu_step(self->ctx);
    }
    if (status == MSDU_OK && !*is_leaving_out) {
        self->where = "wait parameter";
        status = wait_parameters(self);
    }
    return status;
}

/* --- checkpoints --- */

static msdu_status save(rank_self *self)
{
    char path[PATH_MAX + 16];
    fault_progress progress = {.step = self->step + 1, .history = self->history};
    (void)snprintf(path, sizeof(path), "%s/rank%d", self->plan->checkpoint, self->rank);
    self->where = "save";
    return fault_state_save(self->ctx, path, &self->model, &progress);
}

static msdu_status load(rank_self *self)
{
    char path[PATH_MAX + 16];
    fault_progress progress = {0};
    (void)snprintf(path, sizeof(path), "%s/rank%d", self->plan->checkpoint, self->rank);
    self->where = "load";
    msdu_status status = fault_state_load(self->ctx, path, &self->model, &progress);
    self->step = progress.step;
    self->history = progress.history;
    fault_model_keep(&self->model);
    return status;
}

static msdu_status train(rank_self *self, bool *is_leaving_out)
{
    msdu_status status = self->plan->is_loaded ? load(self) : MSDU_OK;
    for (; self->step < self->plan->steps && status == MSDU_OK && !*is_leaving_out; self->step++) {
        if (has_fault(self, "leave") && self->step == self->plan->at) {
            break;
        }
        sleep_ms(self->plan->pause_ms);
        status = train_step(self, is_leaving_out);
        if (status != MSDU_OK || *is_leaving_out) {
            break;
        }
        printf("stepped.%d %d\n", self->rank, self->step);
        status = self->step + 1 == self->plan->save ? save(self) : MSDU_OK;
    }
    if (status == MSDU_OK && !*is_leaving_out) {
        self->where = "finish";
        status = msdu_finish(self->ctx);
    }
    return status;
}

static msdu_status run(rank_self *self, bool *is_leaving_out)
{
    msdu_config config = MSDU_CONFIG_INIT;
    config.log = print_log;
    config.log_user = self;
    if (self->plan->threads > 0) {
        config.backend = "local";
        config.ranks = self->plan->threads;
        config.rank = self->rank;
    }
    if (self->is_again) {
        config.job = "again";
        config.settings = "broadcast = yes\n";
    }
    self->where = "create";
    msdu_status status = msdu_create(&config, &self->ctx);
    if (status == MSDU_OK) {
        self->where = "add";
        status = add_tensors(self);
    }
    if (status == MSDU_OK && self->is_again) {
        status = add_progress(self);
    }
    if (status == MSDU_OK) {
        self->where = "start";
        status = msdu_start(self->ctx);
    }
    if (status == MSDU_OK) {
        self->step = self->is_again ? (int)self->progress : self->step;
        printf("started.%d %d\n", self->rank, self->step);
        status = train(self, is_leaving_out);
    }
    return status;
}

static void print_failure(rank_self *self, msdu_status status, const char *text)
{
    printf("lines.%d %d\n", self->rank, strchr(text, '\n') == NULL ? 1 : 2);
    printf("error.%d %s\n", self->rank, text);
    printf("params.%d %s\n", self->rank, fault_model_is_kept(&self->model) ? "kept" : "other");
    if (self->ctx != NULL && status != MSDU_ERR_IO) {
        /* a failed context says the same again */
        msdu_status again = msdu_step(self->ctx);
        bool is_same = again == status && strcmp(msdu_last_error(), text) == 0;
        printf("again.%d %s\n", self->rank, is_same ? "same" : msdu_last_error());
    }
}

static void print_result(rank_self *self, msdu_status status)
{
    char text[1024];
    msdu_summary summary = MSDU_SUMMARY_INIT;
    (void)snprintf(text, sizeof(text), "%s", msdu_last_error());
    printf("status.%d %s\n", self->rank, msdu_status_name(status));
    printf("where.%d %s\n", self->rank, self->where);
    printf("step.%d %d\n", self->rank, self->step);
    printf("history.%d %016llx\n", self->rank, (unsigned long long)self->history);
    printf("hash.%d %016llx\n", self->rank, (unsigned long long)fault_model_hash(&self->model, 1));
    if (status != MSDU_OK) {
        print_failure(self, status, text);
    }
    if (self->ctx != NULL && self->plan->is_rolled_back) {
        msdu_status back = msdu_rollback(self->ctx);
        printf("rollback.%d %s %016llx\n", self->rank, msdu_status_name(back),
               (unsigned long long)fault_model_hash(&self->model, 1));
    }
    if (self->ctx != NULL && msdu_summary_get(self->ctx, &summary) == MSDU_OK) {
        printf("rounds.%d %llu\n", self->rank, (unsigned long long)summary.rounds);
        printf("domain.%d %s\n", self->rank, summary.domain);
        printf("wire.%d %s\n", self->rank, summary.wire);
    }
}

/* A lost rank ends a job, not the processes of the others: they go back to what all of them have,
 * and meet the newcomer in another job. */
static msdu_status rejoin(rank_self *self, bool is_newcomer)
{
    if (!is_newcomer && self->ctx != NULL) {
        msdu_status status = msdu_rollback(self->ctx); /* nothing to do in the gradient domain */
        fault_model_keep(&self->model);
        printf("back.%d %s %d %016llx\n", self->rank, msdu_status_name(status), self->step,
               (unsigned long long)fault_model_hash(&self->model, 1));
    }
    msdu_destroy(self->ctx);
    self->ctx = NULL;
    self->is_again = true;
    bool is_leaving = false;
    if (is_newcomer) {
        fault_model_free(&self->model); /* no earlier: the context may have been reading it */
    }
    bool is_there = !is_newcomer || fault_model_make(&self->model);
    return is_there ? run(self, &is_leaving) : MSDU_ERR_NO_MEMORY;
}

static void *rank_main(void *user)
{
    rank_self *self = user;
    bool is_leaving = false;
    self->where = "memory";
    self->history = 1;
    self->is_again = self->plan->is_newcomer;
    msdu_status status =
        fault_model_make(&self->model) ? run(self, &is_leaving) : MSDU_ERR_NO_MEMORY;
    if (self->plan->is_rejoined && (is_leaving || status == MSDU_ERR_PEER_LOST)) {
        status = rejoin(self, is_leaving);
        is_leaving = false;
    }
    if (is_leaving) {
        printf("left.%d %d\n", self->rank, self->step);
    } else {
        print_result(self, status);
    }
    msdu_destroy(self->ctx);
    printf("ended.%d\n", self->rank);
    fault_model_free(&self->model);
    return NULL;
}

/* --- command line --- */

static plan read_plan(int count, char *const words[])
{
    plan p = {.steps = 12, .what = MSDU_GRADIENT, .file_bytes = -1, .who = -1};
    for (int i = 1; i < count; i++) {
        p.steps = fault_number(words[i], "steps=", p.steps);
        p.threads = fault_number(words[i], "threads=", p.threads);
        p.who = fault_number(words[i], "who=", p.who);
        p.at = fault_number(words[i], "at=", p.at);
        p.pause_ms = fault_number(words[i], "pause_ms=", p.pause_ms);
        p.save = fault_number(words[i], "save=", p.save - 1) + 1;
        p.is_loaded = fault_number(words[i], "load=", p.is_loaded) != 0;
        p.is_rolled_back = fault_number(words[i], "rollback=", p.is_rolled_back) != 0;
        p.is_rejoined = fault_number(words[i], "rejoin=", p.is_rejoined) != 0;
        p.is_newcomer = fault_number(words[i], "newcomer=", p.is_newcomer) != 0;
        p.file_bytes = fault_number(words[i], "file_bytes=", (int)p.file_bytes);
        if (strncmp(words[i], "fault=", 6) == 0) {
            (void)snprintf(p.fault, sizeof(p.fault), "%s", words[i] + 6);
        }
        if (strncmp(words[i], "checkpoint=", 11) == 0) {
            (void)snprintf(p.checkpoint, sizeof(p.checkpoint), "%s", words[i] + 11);
        }
        if (strcmp(words[i], "what=parameter") == 0) {
            p.what = MSDU_PARAMETER;
        }
    }
    return p;
}

static void limit_files(long bytes)
{
    struct rlimit limit = {.rlim_cur = (rlim_t)bytes, .rlim_max = (rlim_t)bytes};
    (void)signal(SIGXFSZ, SIG_IGN); /* the write then fails, as on a full disk */
    (void)setrlimit(RLIMIT_FSIZE, &limit);
}

/* The rank as the launcher told it, for the names of the lines only. */
static int own_rank(void)
{
    static const char *const names[] = {"MSDU_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                        "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *value = getenv(names[i]);
        if (value != NULL && value[0] != '\0') {
            return (int)strtol(value, NULL, 10);
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    static rank_self selves[RANKS_MOST];
    pthread_t threads[RANKS_MOST];
    plan p = read_plan(argc, argv);
    (void)setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    if (p.file_bytes >= 0) {
        limit_files(p.file_bytes);
    }
    if (strcmp(p.fault, "sleep") == 0) {
        sleep_ms(60000);
    }
    if (p.threads == 0) {
        selves[0] = (rank_self){.plan = &p, .rank = own_rank()};
        rank_main(&selves[0]);
        return 0;
    }
    int started = 0;
    for (; started < p.threads && started < RANKS_MOST; started++) {
        selves[started] = (rank_self){.plan = &p, .rank = started};
        if (pthread_create(&threads[started], NULL, rank_main, &selves[started]) != 0) {
            abort();
        }
    }
    for (int i = 0; i < started; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    return 0;
}
