/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A data-parallel trainer as a user would write it with NCCL and CUDA streams: everything of a step
 * is only enqueued, the host waits once, at the end. Built over a STAND-IN for NCCL and CUDA on the
 * host's memory (test/standin). What it does is chosen by words:
 *   group     gradients of a step in nested groups; streams: layers on two streams in turn
 *   moving    the gradients' memory is new in every step; apart: separate send and receive buffers
 *   double    float64; half, bfloat: 16 bits; mixed: but for the first layer's
 *   mean      ncclAvg instead of sums; late: divided after the sum, not before
 *   same      the same data on all ranks
 *   adam      Adam in place of SGD with momentum; nesterov: Nesterov's
 *   change    another layer appears after at=N steps (half of them); freeze: then the first one is
 *             not trained any more; thaw: for 30 steps only; reorder: then layers are reduced in
 *             another order; resize: then layer 1 in two parts
 *   large     layers 40 times as long; equal: all layers have the same size
 *   poll      a nonblocking communicator
 *   capture   a graph with reductions of a gradient's size, launched every step
 *   held      the device begins with a step when all of it was enqueued, from step 30 on
 *   pair      two communicators in two threads
 *   open      ends without ending the communicator; abort: by ncclCommAbort()
 *   meet      msdu_attach_sync_after_step(), if it is there, before the last step
 *   forks     a child process every few steps, as data loaders are
 *   spike     gradients of one step are infinite on the last rank and huge on rank 0; before every
 *             update they are looked at, as where a loss is scaled, and such a step is left out
 *   differ    the last rank reduces an element less in the middle; dies: it is killed there
 *   local=H   parameter averaging every H steps by hand, from step learned=L on, after warmup=W;
 *             join: until step at, before which momentum is averaged, too
 */
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <nccl.h>

#include "attach_nccl_jobs.h"
#include "attach_words.h"

#define LIMIT_MS 40000

/* --- a step --- */

static void reduce(trainer *t, const void *send, void *recv, size_t count, ncclDataType_t type,
                   ncclRedOp_t op, cudaStream_t stream)
{
    ncclResult_t result = ncclAllReduce(send, recv, count, type, op, t->comm, stream);
    check((int)result, "ncclAllReduce");
    while (t->poll && result == ncclInProgress) {
        check((int)ncclCommGetAsyncError(t->comm, &result), "ncclCommGetAsyncError");
        check((int)result, "the communicator");
    }
}

static void trouble(trainer *t, int step)
{
    bool is_here = t->rank == t->ranks - 1 && step == t->steps / 2;
    if (t->forks && step % 8 == 5) {
        pid_t pid = fork();
        if (pid == 0) {
            exit(0); /* with its handlers, as a careless child does */
        }
        (void)waitpid(pid, NULL, 0);
    }
    if (is_here && t->dies) {
        (void)raise(SIGKILL);
    }
    t->count[1] -= is_here && t->differ ? 1 : 0;
}

static void move_memory(trainer *t)
{
    for (int l = 0; l < LAYERS_MAX && t->moving; l++) {
        t->gradient[l] = take(t->count[l] * sizeof(double)); /* kept: the device may be behind */
        t->reduced[l] = take(t->count[l] * sizeof(double));
    }
}

static void group(const trainer *t, ncclResult_t (*call)(void), int times)
{
    for (int i = 0; i < times && t->group; i++) {
        ncclResult_t result = call();
        check((int)result, "a group");
        while (t->poll && result == ncclInProgress) {
            check((int)ncclCommGetAsyncError(t->comm, &result), "ncclCommGetAsyncError");
        }
    }
}

static void reduce_layer(trainer *t, int l, size_t from, size_t count)
{
    size_t offset = from * width_of(t, l);
    char *send = (char *)t->gradient[l] + offset;
    char *recv = t->apart ? (char *)t->reduced[l] + offset : send;
    reduce(t, send, recv, count, type_of(t, l), t->mean ? ncclAvg : ncclSum, stream_of(t, l));
}

static void reduce_gradients(trainer *t, int step, int first)
{
    bool is_changed = step >= t->at;
    group(t, ncclGroupStart, 2);
    for (int at = first; at < t->layers; at++) {
        int l = t->reorder && is_changed && at > 0 ? t->layers - at : at;
        size_t part = t->resize && is_changed && l == 1 ? t->count[l] / 2 - 10 : t->count[l];
        reduce_layer(t, l, 0, part);
        if (part < t->count[l]) {
            reduce_layer(t, l, part, t->count[l] - part);
        }
    }
    group(t, ncclGroupEnd, 2);
}

static void average(trainer *t, double *const *arrays)
{
    for (int l = 0; l < t->layers; l++) {
        reduce(t, arrays[l], arrays[l], t->count[l], ncclFloat64, ncclSum, stream_of(t, l));
        enqueue(t, divide, (job){.t = t, .layer = l, .gradient = arrays[l]});
    }
}

static void report(trainer *t, int step)
{
    if (t->streams) {
        check((int)cudaEventRecord(t->event, t->stream[1]), "cudaEventRecord");
        check((int)cudaStreamWaitEvent(t->stream[0], t->event, 0), "cudaStreamWaitEvent");
    }
    enqueue(t, measure, (job){.t = t, .step = step});
    double *sums = t->sums + (size_t)LAYERS_MAX * 2 * (size_t)step;
    reduce(t, &t->ones[step], &t->ones[step], 1, ncclInt32, ncclSum, t->stream[0]);
    reduce(t, sums, sums, (size_t)LAYERS_MAX * 2, ncclFloat64, ncclSum, t->stream[0]);
    reduce(t, &t->norms[step], &t->norms[step], 1, ncclFloat32, ncclMax, t->stream[0]);
    if (t->streams) { /* the next step does not overtake what is measured */
        check((int)cudaEventRecord(t->event, t->stream[0]), "cudaEventRecord");
        check((int)cudaStreamWaitEvent(t->stream[1], t->event, 0), "cudaStreamWaitEvent");
    }
}

static void take_step(trainer *t, int step)
{
    int first = t->freeze && step >= t->at && !(t->thaw && step >= t->at + 30) ? 1 : 0;
    bool is_alone = t->local > 0 && step >= t->learned && !(t->join && step >= t->at);
    double before = is_alone || t->mean || t->late ? 1.0 : 1.0 / t->ranks;
    double after = is_alone || t->mean || !t->late ? 1.0 : 1.0 / t->ranks;
    if (t->join && step == t->at) {
        average(t, t->weight);
        average(t, t->velocity);
    }
    if (t->held && step >= 30) {
        enqueue(t, pass_gate, (job){.t = t, .step = step});
    }
    for (int l = 0; l < t->layers; l++) {
        enqueue(t, backward, (job){t, step, l, t->gradient[l], before});
    }
    if (t->spike && step == t->steps / 2 && (t->rank == 0 || t->rank == t->ranks - 1)) {
        int l = t->rank == 0 ? 2 : 1;
        enqueue(t, spoil, (job){t, step, l, t->gradient[l], 1});
    }
    if (!is_alone) {
        reduce_gradients(t, step, first);
    }
    for (int l = 0; l < t->layers && t->spike; l++) {
        enqueue(t, look, (job){t, step, l, t->apart ? t->reduced[l] : t->gradient[l], 1});
    }
    for (int l = first; l < t->layers; l++) {
        void *g = t->apart && !is_alone ? t->reduced[l] : t->gradient[l];
        enqueue(t, update, (job){t, step, l, g, after});
    }
    int since = step - t->learned + 1;
    if (is_alone && (since <= t->warmup || (since - t->warmup) % t->local == 0)) {
        average(t, t->weight);
    }
    if (t->capture) {
        check((int)cudaGraphLaunch(t->graph, t->stream[0]), "cudaGraphLaunch");
    }
    report(t, step);
    atomic_store(&t->opened, step + 1);
}

/* What a user may do who knows of the library, and does not link it. */
static void tell(const trainer *t, int step)
{
    void *symbol = dlsym(RTLD_DEFAULT, "msdu_attach_sync_after_step");
    void (*meet)(void) = NULL;
    if (symbol != NULL && t->meet && step == t->steps - 1) {
        memcpy(&meet, &symbol, sizeof(symbol));
        meet();
    }
}

/* --- begin and end --- */

static void join(trainer *t)
{
    char path[512];
    char draft[520];
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t result = ncclInProgress;
    (void)snprintf(path, sizeof(path), "%s.%d", getenv("TRAINER_ID"), t->seed);
    (void)snprintf(draft, sizeof(draft), "%s.new", path);
    if (t->rank == 0) {
        check((int)ncclGetUniqueId(&id), "ncclGetUniqueId");
        FILE *file = fopen(draft, "wb");
        if (file == NULL || fwrite(&id, sizeof(id), 1, file) != 1 || fclose(file) != 0 ||
            rename(draft, path) != 0) {
            _exit(5);
        }
    }
    FILE *file = NULL;
    while (t->rank != 0 && (file = fopen(path, "rb")) == NULL) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    if (file != NULL && (fread(&id, sizeof(id), 1, file) != 1 || fclose(file) != 0)) {
        _exit(5);
    }
    config.blocking = t->poll ? 0 : 1;
    check((int)ncclCommInitRankConfig(&t->comm, t->ranks, id, t->rank, &config), "ncclCommInit");
    while (result == ncclInProgress) {
        check((int)ncclCommGetAsyncError(t->comm, &result), "ncclCommGetAsyncError");
    }
}

static void read_words(trainer *t, int argc, char **argv)
{
    const struct {
        const char *word;
        bool *flag;
    } words[] = {{"group", &t->group},       {"streams", &t->streams},  {"moving", &t->moving},
                 {"apart", &t->apart},       {"double", &t->is_double}, {"half", &t->is_half},
                 {"bfloat", &t->is_bfloat},  {"mixed", &t->mixed},      {"mean", &t->mean},
                 {"late", &t->late},         {"same", &t->same},        {"adam", &t->adam},
                 {"change", &t->change},     {"freeze", &t->freeze},    {"poll", &t->poll},
                 {"held", &t->held},         {"capture", &t->capture},  {"open", &t->open},
                 {"abort", &t->abort},       {"meet", &t->meet},        {"forks", &t->forks},
                 {"differ", &t->differ},     {"dies", &t->dies},        {"spike", &t->spike},
                 {"nesterov", &t->nesterov}, {"thaw", &t->thaw},        {"reorder", &t->reorder},
                 {"resize", &t->resize},     {"join", &t->join}};
    const size_t sizes[LAYERS_MAX] = {513, 700, 3001, 2000};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        *words[i].flag = has_word(argc, argv, words[i].word);
    }
    t->rank = (int)strtol(getenv("RANK"), NULL, 10);
    t->ranks = (int)strtol(getenv("WORLD_SIZE"), NULL, 10);
    t->steps = number(argc, argv, "steps", 60);
    t->at = number(argc, argv, "at", t->steps / 2);
    t->freeze = t->freeze || t->thaw;
    t->local = number(argc, argv, "local", 0);
    t->learned = number(argc, argv, "learned", 0);
    t->warmup = number(argc, argv, "warmup", 0);
    t->layers = LAYERS_MAX - 1;
    for (int l = 0; l < LAYERS_MAX; l++) {
        t->count[l] = has_word(argc, argv, "equal") ? 700 : sizes[l];
        t->count[l] *= has_word(argc, argv, "large") ? 40 : 1;
    }
}

static void allocate(trainer *t)
{
    for (int l = 0; l < LAYERS_MAX; l++) {
        size_t bytes = t->count[l] * sizeof(double);
        t->weight[l] = take_zeros(bytes);
        t->velocity[l] = take_zeros(bytes);
        t->second[l] = take_zeros(bytes);
        t->gradient[l] = take(bytes);
        t->reduced[l] = take(bytes);
    }
    size_t bytes = STEPS_MAX * LAYERS_MAX * 2 * sizeof(double);
    t->sums = take_zeros(bytes);
    t->norms = take(STEPS_MAX * sizeof(float));
    t->ones = take(STEPS_MAX * sizeof(int));
    t->graphed = take(3001 * sizeof(float));
    for (int i = 0; i < 2; i++) {
        check((int)cudaStreamCreate(&t->stream[i]), "cudaStreamCreate");
    }
    check((int)cudaEventCreateWithFlags(&t->event, cudaEventDisableTiming), "cudaEventCreate");
}

/* Before any step, so that what is captured is nobody's gradient: sums of sums. */
static void capture(trainer *t)
{
    cudaGraph_t graph = NULL;
    cudaStream_t stream = t->stream[0];
    check((int)cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
    check((int)cudaLaunchHostFunc(stream, fill_graphed, t), "cudaLaunchHostFunc");
    for (int i = 0; i < CAPTURED; i++) {
        reduce(t, t->graphed, t->graphed, 3001, ncclFloat32, ncclSum, stream);
    }
    check((int)cudaLaunchHostFunc(stream, check_graphed, t), "cudaLaunchHostFunc");
    check((int)cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    check((int)cudaGraphInstantiate(&t->graph, graph, 0), "cudaGraphInstantiate");
}

/* NCCL alone would wait for ever for a rank that is gone. */
static void synchronize(const trainer *t)
{
    for (int i = 0; i < 2; i++) {
        int left_ms = LIMIT_MS;
        while (cudaStreamQuery(t->stream[i]) == cudaErrorNotReady && left_ms-- > 0) {
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
        check(left_ms > 0 ? 0 : -1, "the device");
    }
}

static void print_log(trainer *t)
{
    for (int step = 0; step < t->steps && t->rank == 0; step++) {
        const double *sums = t->sums + (size_t)LAYERS_MAX * 2 * (size_t)step;
        double loss = sums[0] + sums[1] + sums[2] + sums[3];
        bool is_out = t->ones[step] == 1001 * t->ranks; /* on all ranks, or something is wrong */
        (void)printf("%sstep %d loss %.17g norm %.9g%s\n", t->seed > 0 ? "second " : "", step,
                     loss / t->ranks, (double)t->norms[step], is_out ? " left out" : "");
        t->bad += is_out || t->ones[step] == t->ranks ? 0 : 1;
    }
    check(t->bad, "a sum that is no gradient");
}

/* The largest difference between ranks. */
static void print_layer(trainer *t, int l)
{
    double worst = 0;
    double *low = t->velocity[l]; /* nobody needs it any more */
    double *high = t->second[l];
    for (size_t i = 0; i < t->count[l]; i++) {
        high[i] = t->weight[l][i];
        low[i] = -t->weight[l][i];
    }
    reduce(t, high, high, t->count[l], ncclFloat64, ncclMax, t->stream[0]);
    reduce(t, low, low, t->count[l], ncclFloat64, ncclMax, t->stream[0]);
    synchronize(t);
    for (size_t i = 0; i < t->count[l]; i++) {
        worst = fmax(worst, high[i] + low[i]);
    }
    if (t->rank == 0) {
        (void)printf("%slayer %d apart %.3g\n", t->seed > 0 ? "second " : "", l, worst);
    }
}

/* How far ranks are apart, and a fingerprint of where they are. */
static void print_end(trainer *t)
{
    double *both = take(4 * sizeof(double));
    memset(both, 0, 4 * sizeof(double));
    for (int l = 0; l < t->layers; l++) {
        for (size_t i = 0; i < t->count[l]; i++) {
            both[0] += t->weight[l][i] * noise(1, 2, 3, (unsigned)i);
            both[1] += t->weight[l][i] * t->weight[l][i];
        }
    }
    both[2] = -both[0];
    both[3] = -both[1];
    reduce(t, both, both, 4, ncclFloat64, ncclMax, t->stream[0]);
    synchronize(t);
    if (t->rank == 0) {
        (void)printf("%send %.17g %.17g apart %.3g\n", t->seed > 0 ? "second " : "", both[0],
                     both[1], fmax(both[0] + both[2], both[1] + both[3]));
    }
}

static void *train(void *argument)
{
    trainer *t = argument;
    join(t);
    allocate(t);
    if (t->capture) {
        capture(t);
    }
    for (int step = 0; step < t->steps; step++) {
        t->layers = t->change && step >= t->at ? LAYERS_MAX : t->layers;
        trouble(t, step);
        move_memory(t);
        tell(t, step);
        take_step(t, step);
    }
    synchronize(t);
    print_log(t);
    for (int l = 0; l < t->layers; l++) {
        print_layer(t, l);
    }
    print_end(t);
    if (t->abort) {
        check((int)ncclCommAbort(t->comm), "ncclCommAbort");
    } else if (!t->open) {
        check((int)ncclCommDestroy(t->comm), "ncclCommDestroy");
    }
    return NULL;
}

__attribute__((visibility("default"))) int main(int argc, char **argv);

int main(int argc, char **argv)
{
    static trainer both[2];
    pthread_t threads[2];
    int count = has_word(argc, argv, "pair") ? 2 : 1;
    for (int i = 0; i < count; i++) {
        read_words(&both[i], argc, argv);
        both[i].seed = i;
        if (count == 1) {
            (void)train(&both[0]);
        } else if (pthread_create(&threads[i], NULL, train, &both[i]) != 0) {
            return 5;
        }
    }
    for (int i = 0; i < count && count > 1; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    return 0;
}
