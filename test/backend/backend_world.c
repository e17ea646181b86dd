/* SPDX-License-Identifier: Apache-2.0 */
/* Runs one function on every rank of a job: threads, forked processes, or mpirun's processes. */
#include "backend_world.h"
#include "pause.h"
#include "suite.h"

#include <check.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIFE_S 60 /* a rank that lives longer hangs */

static _Thread_local char error_text[WORLD_TEXT_BYTES];

static msdu_status host_fail(msdu_status status, const char *text)
{
    (void)snprintf(error_text, sizeof(error_text), "%s", text);
    return status;
}

static void host_log(void *user, msdu_log_level level, const char *text)
{
    (void)user;
    (void)level;
    (void)text;
}

static void host_notify(void *user)
{
    struct rank *me = user;
    (void)pthread_mutex_lock(&me->lock);
    me->notices++;
    (void)pthread_cond_broadcast(&me->notified);
    (void)pthread_mutex_unlock(&me->lock);
}

const char *world_error(void)
{
    return error_text;
}

uint64_t world_hash(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

void world_nap(uint64_t random)
{
    pause_us((long)(random % 2000));
}

static const char *backend_name(void)
{
    const char *name = getenv("MSDU_TEST_BACKEND");
    return name == NULL || name[0] == '\0' ? "local" : name;
}

bool world_is_local(void)
{
    return strcmp(backend_name(), "local") == 0;
}

bool world_is_mpi(void)
{
    return getenv("MSDU_TEST_MPIRUN") != NULL;
}

bool rank_failed(struct rank *me, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(me->report->text, sizeof(me->report->text), format, args);
    va_end(args);
    return false;
}

msdu_op rank_sum(float *data, uint64_t count, uint64_t sequence)
{
    return (msdu_op){.size = sizeof(msdu_op),
                     .kind = MSDU_OP_ALLREDUCE,
                     .sequence = sequence,
                     .count = count,
                     .recv = data};
}

msdu_status rank_finish(struct rank *me, msdu_req *req)
{
    msdu_status status = MSDU_IN_PROGRESS;
    while (status == MSDU_IN_PROGRESS) {
        if (MSDU_BACKEND_HAS(me->backend, wait)) {
            status = me->backend->wait(me->comm, req, UINT64_C(50000000));
        } else {
            status = me->backend->test(me->comm, req);
        }
    }
    return status;
}

msdu_status rank_do(struct rank *me, const msdu_op *op)
{
    msdu_req *req = NULL;
    msdu_status status = me->backend->start(me->comm, op, &req);
    return status == MSDU_OK ? rank_finish(me, req) : status;
}

msdu_status rank_until_failure(struct rank *me, msdu_op op)
{
    msdu_status status = MSDU_OK;
    for (; status == MSDU_OK; op.sequence++) {
        status = rank_do(me, &op);
    }
    return status;
}

bool rank_expect(struct rank *me, msdu_status status, msdu_status wanted, const char *part)
{
    if (status != wanted || strstr(error_text, part) == NULL) {
        return rank_failed(me, "status %d instead of %d, text \"%.300s\" without \"%s\"",
                           (int)status, (int)wanted, error_text, part);
    }
    return true;
}

struct world world_make(const char *what, rank_body body, int32_t ranks)
{
    struct world world = {.what = what,
                          .ranks = ranks,
                          .absent = -1,
                          .victim = -1,
                          .lanes = 2,
                          .requests = 16,
                          .deadline_ms = 30000,
                          .body = body};
    return world;
}

static void rank_init(struct rank *me, struct world *world, int32_t index)
{
    memset(me, 0, sizeof(*me));
    me->world = world;
    me->index = index;
    me->backend = world->backend;
    me->report = &world->reports[index];
    (void)pthread_mutex_init(&me->lock, NULL);
    (void)pthread_cond_init(&me->notified, NULL);
    me->host = (msdu_host){.size = sizeof(msdu_host),
                           .rank = index,
                           .ranks = world->ranks,
                           .job = world->job,
                           .rendezvous = world->ranks > 1 ? world->rendezvous : NULL,
                           .deadline_ns = world->deadline_ms * UINT64_C(1000000),
                           .lanes = world->lanes,
                           .requests = world->requests,
                           .user = me,
                           .notify = host_notify,
                           .log = host_log,
                           .fail = host_fail};
}

static void *rank_main(void *argument)
{
    struct rank *me = argument;
    bool is_open = me->world->absent < 0;
    if (is_open && me->backend->open(&me->host, &me->comm) != MSDU_OK) {
        (void)rank_failed(me, "open: %s", error_text);
        return NULL;
    }
    me->report->is_good = me->world->body(me);
    if (me->comm != NULL) {
        me->backend->close(me->comm);
    }
    return NULL;
}

static void run_threads(struct world *world)
{
    static struct rank ranks[WORLD_RANKS_MAX];
    pthread_t threads[WORLD_RANKS_MAX] = {0};
    for (int32_t i = 0; i < world->ranks; i++) {
        rank_init(&ranks[i], world, i);
        if (i != world->absent) {
            ck_assert_int_eq(pthread_create(&threads[i], NULL, rank_main, &ranks[i]), 0);
        }
    }
    for (int32_t i = 0; i < world->ranks; i++) {
        if (i != world->absent) {
            (void)pthread_join(threads[i], NULL);
        }
        (void)pthread_mutex_destroy(&ranks[i].lock);
        (void)pthread_cond_destroy(&ranks[i].notified);
    }
}

static pid_t fork_rank(struct world *world, int32_t index)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct rank *me = malloc(sizeof(*me));
        char index_text[16];
        (void)alarm(LIFE_S);
        /* several ranks share the one GPU only if NCCL takes them for different hosts */
        (void)snprintf(index_text, sizeof(index_text), "rank%" PRId32, index);
        (void)setenv("NCCL_HOSTID", index_text, 1);
        rank_init(me, world, index);
        (void)rank_main(me);
        free(me);
        _exit(0);
    }
    return pid;
}

static void run_processes(struct world *world)
{
    pid_t pids[WORLD_RANKS_MAX] = {0};
    for (int32_t i = 0; i < world->ranks; i++) {
        if (i != world->absent) {
            pids[i] = fork_rank(world, i);
            ck_assert_int_gt(pids[i], 0);
        }
    }
    for (int32_t i = 0; i < world->ranks; i++) {
        int code = 0;
        if (pids[i] > 0 && i != world->victim) {
            ck_assert_int_eq(waitpid(pids[i], &code, 0), pids[i]);
            if (!WIFEXITED(code) || WEXITSTATUS(code) != 0) {
                world->reports[i].is_good = false;
                (void)snprintf(world->reports[i].text, WORLD_TEXT_BYTES,
                               "the process ended with wait status 0x%x", (unsigned)code);
            }
        }
    }
    if (world->victim >= 0 && pids[world->victim] > 0) {
        (void)kill(pids[world->victim], SIGKILL);
        (void)waitpid(pids[world->victim], NULL, 0);
    }
}

/* --- processes of mpirun --- */

/* What a test leaves in a file for the processes that mpirun starts: the same program, anew. */
struct job_file {
    struct world world;
    intptr_t body; /* where the function is, relative to world_run() */
    struct report reports[WORLD_RANKS_MAX];
};

static struct job_file *job_file_map(const char *path)
{
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *memory = MAP_FAILED;
    if (file >= 0 && ftruncate(file, (off_t)sizeof(struct job_file)) == 0) {
        memory = mmap(NULL, sizeof(struct job_file), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    if (file >= 0) {
        (void)close(file);
    }
    return memory == MAP_FAILED ? NULL : memory;
}

static int rank_of_launcher(void)
{
    const char *text = getenv("OMPI_COMM_WORLD_RANK");
    text = text == NULL ? getenv("PMI_RANK") : text;
    return text == NULL ? -1 : (int)strtol(text, NULL, 10);
}

bool world_is_rank(int *code_out)
{
    const char *path = getenv("MSDU_TEST_WORLD");
    if (path == NULL) {
        return false;
    }
    struct job_file *job = job_file_map(path);
    int index = rank_of_launcher();
    *code_out = 1;
    if (job == NULL || index < 0 || index >= job->world.ranks) {
        return true;
    }
    struct world world = job->world;
    struct rank *me = malloc(sizeof(*me));
    (void)alarm(LIFE_S);
    world.reports = job->reports;
    world.body = (rank_body)((intptr_t)world_run + job->body);
    *code_out = msdu__backend_find(backend_name(), &world.backend) == MSDU_OK ? 0 : 1;
    if (me != NULL && *code_out == 0) {
        rank_init(me, &world, index);
        (void)rank_main(me);
    }
    free(me);
    return true;
}

static _Noreturn void exec_mpirun(const struct world *world, const char *path)
{
    char ranks[16];
    char program[512] = "";
    (void)snprintf(ranks, sizeof(ranks), "%" PRId32, world->ranks);
    ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (length > 0 && null >= 0 && dup2(null, 0) == 0 && setenv("MSDU_TEST_WORLD", path, 1) == 0) {
        const char *wanted = getenv("MSDU_TEST_MPIRUN"); /* that it is there was looked at before */
        const char *mpirun = wanted != NULL ? wanted : "mpirun";
        (void)execlp(mpirun, mpirun, "-n", ranks, program, (char *)NULL);
    }
    _exit(127);
}

static void run_mpi(struct world *world, const char *folder)
{
    char path[192];
    (void)snprintf(path, sizeof(path), "%s/job", folder);
    struct job_file *job = job_file_map(path);
    ck_assert_ptr_nonnull(job);
    job->world = *world;
    job->body = (intptr_t)world->body - (intptr_t)world_run;
    pid_t pid = fork();
    if (pid == 0) {
        exec_mpirun(world, path);
    }
    int code = -1;
    ck_assert_int_eq(waitpid(pid, &code, 0), pid);
    memcpy(world->reports, job->reports, sizeof(job->reports));
    (void)munmap(job, sizeof(*job));
    (void)unlink(path);
    for (int32_t i = 0; i < world->ranks && code != 0; i++) {
        if (world->reports[i].is_good) {
            (void)snprintf(world->reports[i].text, WORLD_TEXT_BYTES,
                           "it was good, but mpirun ended with wait status 0x%x", (unsigned)code);
        }
        world->reports[i].is_good = false;
    }
}

void world_run(struct world *world)
{
    static int jobs;
    char folder[112];
    ck_assert_int_eq(msdu__backend_find(backend_name(), &world->backend), MSDU_OK);
    (void)snprintf(folder, sizeof(folder), "%s/job-XXXXXX", suite_folder());
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(world->job, sizeof(world->job), "test %ld.%d", (long)getpid(), jobs++);
    (void)snprintf(world->rendezvous, sizeof(world->rendezvous), "file://%s", folder);
    size_t bytes = WORLD_RANKS_MAX * sizeof(struct report);
    world->reports = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(world->reports != MAP_FAILED);
    world->is_threads = world_is_local();
    if (world->is_threads) {
        run_threads(world);
    } else if (world_is_mpi()) {
        run_mpi(world, folder);
    } else {
        run_processes(world);
    }
    for (int32_t i = 0; i < world->ranks; i++) {
        const struct report *report = &world->reports[i];
        if (i != world->absent && i != world->victim) {
            ck_assert_msg(report->is_good, "%s: rank %" PRId32 ": %s", world->what, i,
                          report->text);
        }
    }
    int32_t first = world->absent == 0 || world->victim == 0 ? 1 : 0;
    for (int32_t i = 0; i < world->ranks; i++) {
        if (i != world->absent && i != world->victim) {
            ck_assert_msg(world->reports[i].hash == world->reports[first].hash,
                          "%s: ranks %" PRId32 " and %" PRId32 " have different results",
                          world->what, first, i);
        }
    }
    (void)munmap(world->reports, bytes);
    /* Rank 0 takes its notice back at close, so the folder is empty unless it was killed. */
    if (world->victim != 0) {
        ck_assert_int_eq(rmdir(folder), 0);
    }
    suite_remove(folder);
}
