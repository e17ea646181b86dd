/* SPDX-License-Identifier: Apache-2.0 */
/* `msdu bench allreduce`: the sliced path beside one whole Gloo allreduce on the same link. */
#include "allreduce.h"

#include <ftw.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define RUNS           15
#define SMOKE_RUNS     3
#define RUN_BYTES      (16ULL << 20) /* small sizes are repeated until a run moves this */
#define ITERATIONS_MAX 20
#define DEFAULT_MTU    9000

/* --- plan of the runs --- */

static void choose_sizes(const msdu__bench_options *o, msdu__allreduce *shared)
{
    static const uint64_t all[] = {64ULL << 10, 256ULL << 10, 1ULL << 20,
                                   4ULL << 20,  16ULL << 20,  64ULL << 20};
    static const uint64_t smoke[] = {64ULL << 10, 1ULL << 20, 8ULL << 20};
    const uint64_t *from = o->is_smoke ? smoke : all;
    shared->sizes = o->is_smoke ? sizeof(smoke) / sizeof(smoke[0]) : sizeof(all) / sizeof(all[0]);
    if (o->bytes > 0) {
        from = &o->bytes;
        shared->sizes = 1;
    }
    for (uint32_t i = 0; i < shared->sizes; i++) {
        uint64_t repeats = RUN_BYTES / from[i];
        shared->bytes[i] = from[i] < sizeof(float) ? sizeof(float) : from[i] / sizeof(float) * 4;
        repeats = repeats > ITERATIONS_MAX ? ITERATIONS_MAX : repeats;
        shared->iterations[i] = repeats > 0 ? (uint32_t)repeats : 1;
    }
}

static void choose_runs(const msdu__bench_options *o, msdu__allreduce *shared)
{
    shared->runs = o->runs > 0 ? o->runs : o->is_smoke ? SMOKE_RUNS : RUNS;
    if (shared->runs > MSDU__ALLREDUCE_RUNS) {
        shared->runs = MSDU__ALLREDUCE_RUNS;
    }
}

static msdu__allreduce *make_shared(const msdu__bench_options *o)
{
    msdu__allreduce *shared =
        mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        perror("msdu bench: shared memory");
        return NULL;
    }
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &attributes, MSDU__ALLREDUCE_RANKS);
    pthread_barrierattr_destroy(&attributes);
    shared->backend = o->backend != NULL ? o->backend : "gloo";
    shared->wire = o->wire != NULL ? o->wire : "float32";
    snprintf(shared->interface, sizeof(shared->interface), "%s",
             o->rate_mbit > 0 ? MSDU__LINK_INTERFACE : "lo");
    choose_sizes(o, shared);
    choose_runs(o, shared);
    return shared;
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *where)
{
    (void)status;
    (void)kind;
    (void)where;
    return remove(path);
}

/* --- processes --- */

static pid_t start_rank(msdu__allreduce *shared, int rank, msdu__link *link)
{
    fflush(NULL); /* or the child would print it again */
    pid_t child = fork();
    if (child != 0) {
        return child;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* no rank outlives an interrupted bench */
    bool is_ready = link == NULL || rank == 0 || msdu__link_far(link);
    bool is_done = is_ready && msdu__allreduce_rank(shared, rank);
    if (shared->error[rank][0] != '\0') {
        fprintf(stderr, "msdu bench: rank %d: %s\n", rank, shared->error[rank]);
    }
    _exit(is_done ? EXIT_SUCCESS : EXIT_FAILURE);
}

/* One that failed would leave the other at a barrier. */
static bool wait_for_ranks(const pid_t ranks[MSDU__ALLREDUCE_RANKS])
{
    bool is_fine = true;
    for (int left = MSDU__ALLREDUCE_RANKS; left > 0; left--) {
        int status = 0;
        pid_t ended = wait(&status);
        if (ended > 0 && status == 0) {
            continue;
        }
        if (ended > 0 && is_fine) {
            pid_t other = ended == ranks[0] ? ranks[1] : ranks[0];
            kill(other, SIGKILL);
        }
        is_fine = false;
    }
    return is_fine;
}

static bool run_ranks(msdu__allreduce *shared, msdu__link *link)
{
    pid_t ranks[MSDU__ALLREDUCE_RANKS];
    ranks[1] = start_rank(shared, 1, link);
    if (ranks[1] < 0) {
        perror("msdu bench: fork");
        return false;
    }
    bool is_linked = link == NULL || msdu__link_near(link, ranks[1]);
    ranks[0] = is_linked ? start_rank(shared, 0, link) : -1;
    if (ranks[0] < 0) {
        kill(ranks[1], SIGKILL);
        waitpid(ranks[1], NULL, 0);
        return false;
    }
    return wait_for_ranks(ranks);
}

/* --- report --- */

/* An operation has ended when it has on every rank. */
static msdu__bench_stats summarize(const msdu__allreduce *shared, uint32_t size, int path)
{
    double slowest[MSDU__ALLREDUCE_RUNS];
    for (uint32_t run = 0; run < shared->runs; run++) {
        const double *ranks = shared->run_ns[size][path][run];
        slowest[run] = ranks[0] > ranks[1] ? ranks[0] : ranks[1];
    }
    return msdu__bench_summarize(slowest, shared->runs);
}

static uint64_t wrong_of(const msdu__allreduce *shared, uint32_t size, int path)
{
    return shared->wrong[size][path][0] + shared->wrong[size][path][1];
}

/* As nccl-tests has it: 2 (n - 1) / n of the bytes pass each rank's link. */
static double busbw(double algbw)
{
    return algbw * 2.0 * (MSDU__ALLREDUCE_RANKS - 1) / MSDU__ALLREDUCE_RANKS;
}

/* Processor time of both ranks for what both sent; the waits in front of a run are not in it. */
static double cpu_s_per_gb(const msdu__allreduce *shared, uint32_t size, int path)
{
    const double *cpu = shared->cpu_ns[size][path];
    double runs = (double)shared->runs * shared->iterations[size];
    return (cpu[0] + cpu[1]) / (busbw((double)shared->bytes[size]) * MSDU__ALLREDUCE_RANKS * runs);
}

static void add_path(cJSON *record, const char *path, msdu__bench_stats t, double algbw,
                     uint64_t wrong)
{
    const struct {
        const char *name;
        double value;
    } fields[] = {
        {"us", t.median / 1e3}, {"min_us", t.min / 1e3},      {"p90_us", t.p90 / 1e3},
        {"algbw_gbps", algbw},  {"busbw_gbps", busbw(algbw)}, {"wrong", (double)wrong},
    };
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        char name[32];
        snprintf(name, sizeof(name), "%s_%s", path, fields[i].name);
        cJSON_AddNumberToObject(record, name, fields[i].value);
    }
}

static void report_size(msdu__bench *bench, const msdu__allreduce *shared, uint32_t size)
{
    static const char *const paths[MSDU__PATHS] = {"sliced", "whole"};
    const uint64_t bytes = shared->bytes[size];
    const uint64_t count = bytes / sizeof(float);
    const uint32_t rate = bench->options.rate_mbit;
    double median[MSDU__PATHS];
    char name[48];
    snprintf(name, sizeof(name), "allreduce %llu", (unsigned long long)bytes);
    cJSON *record = msdu__bench_record(bench, name);
    cJSON_AddNumberToObject(record, "bytes", (double)bytes);
    cJSON_AddNumberToObject(record, "count", (double)count);
    cJSON_AddStringToObject(record, "wire", shared->wire);
    fprintf(bench->text, "%12llu %12llu %8s", (unsigned long long)bytes, (unsigned long long)count,
            "float");
    for (int path = 0; path < MSDU__PATHS; path++) {
        msdu__bench_stats t = summarize(shared, size, path);
        double algbw = (double)bytes / t.median;
        uint64_t wrong = wrong_of(shared, size, path);
        median[path] = t.median;
        bench->is_wrong = bench->is_wrong || wrong > 0;
        double cpu = cpu_s_per_gb(shared, size, path);
        fprintf(bench->text, "  %10.1f %7.3f %7.3f %6llu %8.2f", t.median / 1e3, algbw,
                busbw(algbw), (unsigned long long)wrong, cpu);
        add_path(record, paths[path], t, algbw, wrong);
        snprintf(name, sizeof(name), "%s_cpu_s_per_gb", paths[path]);
        cJSON_AddNumberToObject(record, name, cpu);
        if (rate > 0) {
            double share = busbw(algbw) * 8e3 / rate;
            fprintf(bench->text, " %6.3f", share);
            snprintf(name, sizeof(name), "%s_rate_share", paths[path]);
            cJSON_AddNumberToObject(record, name, share);
        }
    }
    fprintf(bench->text, "  %6.3f\n", median[MSDU__WHOLE] / median[MSDU__SLICED]);
    cJSON_AddNumberToObject(record, "ratio", median[MSDU__WHOLE] / median[MSDU__SLICED]);
    cJSON_AddNumberToObject(record, "runs", shared->runs);
    cJSON_AddNumberToObject(record, "iterations", shared->iterations[size]);
    cJSON_AddNumberToObject(record, "ranks", MSDU__ALLREDUCE_RANKS);
    cJSON_AddNumberToObject(record, "sliced_allocations", (double)shared->allocations[size]);
    cJSON_AddNumberToObject(record, "rate_mbit", rate);
}

static void report(msdu__bench *bench, const msdu__allreduce *shared, const msdu__link *link)
{
    const char *share = link != NULL ? " share" : "";
    fprintf(bench->text, "# %d processes, median of %u runs in turn, of the slower rank; link: ",
            MSDU__ALLREDUCE_RANKS, shared->runs);
    if (link == NULL) {
        fprintf(bench->text, "loopback");
    } else {
        fprintf(bench->text, "%u Mbit/s, mtu %u, headers leave %.3f of the rate", link->rate_mbit,
                link->mtu, msdu__link_payload_share(link));
    }
    fprintf(bench->text, "; sliced: %s\n", shared->wire);
    fprintf(bench->text, "#%11s %12s %8s  %10s %7s %7s %6s %8s%s  %10s %7s %7s %6s %8s%s  %6s\n",
            "", "", "", "sliced", "", "", "", "", link != NULL ? "      " : "", "whole", "", "", "",
            "", link != NULL ? "      " : "", "");
    fprintf(bench->text, "#%11s %12s %8s  %10s %7s %7s %6s %8s%s  %10s %7s %7s %6s %8s%s  %6s\n",
            "bytes", "count", "type", "time us", "algbw", "busbw", "#wrong", "cpu s/GB", share,
            "time us", "algbw", "busbw", "#wrong", "cpu s/GB", share, "ratio");
    for (uint32_t i = 0; i < shared->sizes; i++) {
        report_size(bench, shared, i);
    }
}

int msdu__bench_allreduce(msdu__bench *bench)
{
    const msdu__bench_options *o = &bench->options;
    msdu__link shaped = {.rate_mbit = o->rate_mbit, .mtu = o->mtu > 0 ? o->mtu : DEFAULT_MTU};
    msdu__link *link = o->rate_mbit > 0 ? &shaped : NULL;
    msdu__allreduce *shared = make_shared(o);
    if (shared == NULL || (link != NULL && !msdu__link_open(link))) {
        return EXIT_FAILURE;
    }
    snprintf(shared->folder, sizeof(shared->folder), "/tmp/msdu-bench-XXXXXX");
    if (mkdtemp(shared->folder) == NULL) {
        perror("msdu bench: a folder in /tmp");
        return EXIT_FAILURE;
    }
    bool is_done = run_ranks(shared, link);
    nftw(shared->folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    if (is_done) {
        report(bench, shared, link);
    }
    munmap(shared, sizeof(*shared));
    return is_done ? EXIT_SUCCESS : EXIT_FAILURE;
}
