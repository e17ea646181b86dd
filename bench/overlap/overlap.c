/* SPDX-License-Identifier: Apache-2.0 */
/* `msdu bench overlap`: a training step of a model profile on real ranks, by all methods, beside
 * the bound. */
#include "overlap.h"

#include <errno.h>
#include <ftw.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "wire/wire.h"

#define DEFAULT_PROFILE   "resnet50"
#define DEFAULT_RANKS     2
#define DEFAULT_STEPS     24
#define DEFAULT_WARMUP    48 /* the size of slices is chosen in these */
#define DEFAULT_INTERVAL  4
#define SMOKE_SCALE       0.002
#define SMOKE_STEPS       4
#define SMOKE_WARMUP      2
#define BYTES_PER_ELEMENT 28 /* both arrays, and what the library keeps of parameters */

/* --- the plan --- */

static bool read_profile(const msdu__bench_options *o, msdu__overlap_plan *plan)
{
    char path[MSDU__PROFILE_PATH_BYTES];
    char why[1024];
    msdu__profile_path(o->profile != NULL ? o->profile : DEFAULT_PROFILE, path, sizeof(path));
    if (!msdu__profile_read(path, &plan->profile, why, sizeof(why))) {
        fprintf(stderr, "msdu bench: %s\n", why);
        return false;
    }
    const msdu__profile *p = &plan->profile;
    for (uint32_t l = 0; l < p->layer_count; l++) {
        if (p->layers[l].dtype != MSDU_FLOAT32) {
            fprintf(stderr,
                    "msdu bench: %s: layer '%s' is not float32, which is all that is "
                    "replayed so far\n",
                    path, p->layers[l].name);
            return false;
        }
    }
    if (p->tensor_count == 0) {
        fprintf(stderr, "msdu bench: %s has no tensor to exchange\n", path);
        return false;
    }
    return true;
}

static bool is_launched(void)
{
    static const char *const names[] = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                        "SLURM_NTASKS", "MSDU_RANKS"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *value = getenv(names[i]);
        if (value != NULL && value[0] != '\0') {
            return true;
        }
    }
    return false;
}

static uint32_t or_else(uint32_t value, uint32_t other)
{
    return value > 0 ? value : other;
}

static bool make_plan(const msdu__bench_options *o, msdu__overlap_plan *plan)
{
    bool is_smoke = o->is_smoke;
    *plan = (msdu__overlap_plan){
        .scale = o->scale > 0 ? o->scale
                 : is_smoke   ? SMOKE_SCALE
                              : 1,
        .ratio = o->ratio >= 0 ? o->ratio : 1,
        .methods = o->methods,
        .backend = o->backend,
        .trace = o->trace,
        .slice_bytes = o->bytes,
        .interval = or_else(o->interval, DEFAULT_INTERVAL),
        .steps = or_else(o->steps, is_smoke ? SMOKE_STEPS : DEFAULT_STEPS),
        .warmup = or_else(o->warmup, is_smoke ? SMOKE_WARMUP : DEFAULT_WARMUP),
        .is_spinning = o->is_spinning,
        .is_smoke = is_smoke,
        .link_mbit = o->link_mbit,
        .latency_us = o->latency_us,
        .ranks = (int32_t)or_else(o->ranks, DEFAULT_RANKS),
    };
    char *unknown = o->methods != NULL ? msdu__overlap_unknown(o->methods) : NULL;
    if (unknown != NULL) {
        fprintf(stderr, "msdu bench: no method '%s'; bench/README.md lists them\n", unknown);
        free(unknown);
        return false;
    }
    if (!read_profile(o, plan)) {
        return false;
    }
    msdu__profile_scale(&plan->profile, plan->scale, plan->scale);
    return true;
}

/* Memory that can be had without swapping, 0 if it is not known. */
static double memory_bytes(void)
{
    static const char label[] = "MemAvailable:";
    char line[128];
    double kib = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, label, strlen(label)) == 0) {
            kib = strtod(line + strlen(label), NULL);
            break;
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return kib * 1024;
}

static bool has_memory(const msdu__overlap_plan *plan, int32_t ranks)
{
    double wanted =
        (double)msdu__profile_elements(&plan->profile) * BYTES_PER_ELEMENT * (double)ranks;
    double there = memory_bytes();
    if (there == 0 || wanted < there) {
        return true;
    }
    fprintf(stderr, "msdu bench: %d ranks need %.1f GB, and %.1f are free; try --scale %.2g\n",
            (int)ranks, wanted / 1e9, there / 1e9, plan->scale * there / wanted / 2);
    return false;
}

/* --- one rank --- */

static bool allocate(msdu__overlap_rank *r)
{
    const msdu__profile *p = &r->plan->profile;
    uint64_t floats = 0;
    for (uint32_t t = 0; t < p->tensor_count; t++) {
        floats += (p->tensors[t].count + 15) / 16 * 16;
    }
    size_t tensors = p->tensor_count > 0 ? p->tensor_count : 1;
    r->gradient = calloc(tensors, sizeof(*r->gradient));
    r->parameter = calloc(tensors, sizeof(*r->parameter));
    r->held = calloc(tensors * MSDU__OVERLAP_SAMPLE, sizeof(*r->held));
    if (r->gradient == NULL || r->parameter == NULL || r->held == NULL ||
        !msdu__overlap_values_make(&r->values)) {
        return false;
    }
    float *gradient = msdu__bench_pages(floats * sizeof(float));
    float *parameter = msdu__bench_pages(floats * sizeof(float));
    for (uint32_t t = 0; t < p->tensor_count; t++) {
        uint64_t room = (p->tensors[t].count + 15) / 16 * 16;
        r->gradient[t] = gradient;
        r->parameter[t] = parameter;
        gradient += room;
        parameter += room;
    }
    return true;
}

/* The link, and then the times that give the ratio wanted; equal on all ranks. */
static bool settle(msdu__overlap_plan *plan, msdu__overlap_group *group, msdu__overlap_facts *facts)
{
    if (group->ranks < 2 || !msdu__overlap_probe(plan, group, facts)) {
        return group->ranks < 2;
    }
    double rate = facts->link.bytes_per_ns;
    double link = msdu__overlap_link_bytes(plan, group->ranks, MSDU__WIRE_FLOAT32) / rate;
    double compute = msdu__profile_compute_ns(&plan->profile);
    if (plan->ratio > 0) {
        msdu__profile_scale(&plan->profile, link / plan->ratio / compute, 1);
        compute = msdu__profile_compute_ns(&plan->profile);
    }
    facts->ratio = link / compute;
    return true;
}

/* Blocking steps come first and whenever their bits are needed. */
static bool is_wanted(const msdu__overlap_plan *plan, const msdu__overlap_method *method)
{
    const msdu__overlap_method *other = NULL;
    bool is_wanted = msdu__overlap_is_wanted(plan->methods, method->name);
    for (uint32_t i = 0; (other = msdu__overlap_method_at(i)) != NULL; i++) {
        bool is_exact = other->kind == MSDU__OVERLAP_GRADIENT && other->wire == MSDU__WIRE_FLOAT32;
        is_wanted = is_wanted || (strcmp(method->name, "blocking") == 0 && is_exact &&
                                  msdu__overlap_is_wanted(plan->methods, other->name));
    }
    return is_wanted;
}

static bool run_all(msdu__bench *bench, msdu__overlap_rank *r, msdu__overlap_group *group,
                    const msdu__overlap_facts *facts)
{
    msdu__overlap_result result;
    if (r->rank == 0) {
        msdu__overlap_print_head(bench, r->plan, facts);
    }
    for (uint32_t i = 0; (r->method = msdu__overlap_method_at(i)) != NULL; i++) {
        if (!is_wanted(r->plan, r->method)) {
            continue;
        }
        if (!msdu__overlap_method_run(r, group, &result)) {
            fprintf(stderr, "msdu bench: rank %d: method %s: %s\n", (int)r->rank, r->method->name,
                    msdu_last_error());
            return false;
        }
        bench->is_wrong = bench->is_wrong || result.wrong > 0;
        if (r->rank == 0) {
            msdu__overlap_print(bench, r->plan, facts, r->method, &result);
        }
    }
    return true;
}

static bool check_group(const msdu__overlap_group *group)
{
    if (group->ranks > 1 && group->ranks <= MSDU__OVERLAP_RANKS_MAX) {
        return true;
    }
    fprintf(stderr, "msdu bench: overlap takes 2 to %d ranks, not %d\n", MSDU__OVERLAP_RANKS_MAX,
            (int)group->ranks);
    return false;
}

static bool run_rank(msdu__bench *bench, msdu__overlap_plan *plan)
{
    msdu__overlap_group group;
    msdu__overlap_facts facts = {.ranks = 0};
    (void)prctl(PR_SET_TIMERSLACK, 1000UL); /* else sleeps are 50 us too long */
    bool is_open = msdu__overlap_group_open(&group, plan);
    if (!is_open || (check_group(&group) && !settle(plan, &group, &facts))) {
        fprintf(stderr, "msdu bench: rank %d: %s\n", (int)plan->rank, msdu_last_error());
        return false;
    }
    if (group.rank != 0) {
        bench->options.json = NULL; /* rank 0's, which may be the same file */
    }
    msdu__overlap_rank r = {.plan = plan, .rank = group.rank, .ranks = group.ranks};
    bool is_done = facts.ranks > 0 && allocate(&r) && run_all(bench, &r, &group, &facts);
    msdu__overlap_values_free(&r.values);
    free(r.gradient);
    free(r.parameter);
    free(r.held);
    if (is_done) {
        msdu__overlap_group_close(&group);
    }
    return is_done;
}

/* --- ranks of this machine --- */

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *where)
{
    (void)status;
    (void)kind;
    (void)where;
    return remove(path);
}

static pid_t start_rank(msdu__bench *bench, msdu__overlap_plan *plan, int32_t rank)
{
    pid_t parent = getpid();
    fflush(NULL); /* or the child would print it again */
    pid_t child = fork();
    if (child != 0) {
        return child;
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* no rank outlives an interrupted bench */
    if (getppid() != parent) {
        _exit(EXIT_FAILURE);
    }
    plan->rank = rank;
    bool is_done = run_rank(bench, plan);
    _exit(is_done && !bench->is_wrong ? EXIT_SUCCESS : EXIT_FAILURE);
}

/* This process is rank 0. */
static bool run_here(msdu__bench *bench, msdu__overlap_plan *plan)
{
    pid_t ranks[MSDU__OVERLAP_RANKS_MAX];
    int32_t started = 1;
    bool is_done = true;
    while (started < plan->ranks && is_done) {
        ranks[started] = start_rank(bench, plan, started);
        is_done = ranks[started] > 0;
        started += is_done ? 1 : 0;
    }
    if (!is_done) {
        perror("msdu bench: fork");
    }
    is_done = is_done && run_rank(bench, plan);
    for (int32_t i = 1; i < started; i++) {
        int status = 0;
        if (!is_done) {
            kill(ranks[i], SIGTERM);
        }
        is_done = waitpid(ranks[i], &status, 0) == ranks[i] && status == 0 && is_done;
    }
    return is_done;
}

static bool make_folder(msdu__overlap_plan *plan)
{
    const char *base = getenv("TMPDIR");
    snprintf(plan->folder, sizeof(plan->folder), "%.3000s/msdu-bench-XXXXXX",
             base != NULL && base[0] == '/' ? base : "/tmp");
    if (mkdtemp(plan->folder) != NULL) {
        return true;
    }
    fprintf(stderr, "msdu bench: %s: %s\n", plan->folder, strerror(errno));
    return false;
}

int msdu__bench_overlap(msdu__bench *bench)
{
    msdu__overlap_plan plan;
    bool is_own = bench->options.ranks > 0 || !is_launched();
    if (!make_plan(&bench->options, &plan)) {
        return EXIT_FAILURE;
    }
    bool is_done = has_memory(&plan, is_own ? plan.ranks : 1) && (!is_own || make_folder(&plan));
    if (is_done) {
        is_done = is_own ? run_here(bench, &plan) : run_rank(bench, &plan);
    }
    if (plan.folder[0] != '\0') {
        nftw(plan.folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    }
    msdu__profile_free(&plan.profile);
    return is_done ? EXIT_SUCCESS : EXIT_FAILURE;
}
