/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A data-parallel trainer as a user would write it with NCCL and CUDA streams: everything of a step
 * is only enqueued, the host waits once, at the end. Built over a STAND-IN for NCCL and CUDA on the
 * host's memory (test/standin). What it does is chosen by words:
 *   group     gradients of a step in nested groups; streams: layers on two streams in turn
 *   moving    the gradients' memory is new in every step; apart: separate send and receive buffers
 *   double    float64; mean: ncclAvg instead of sums; late: divided after the sum, not before
 *   same      the same data on all ranks
 *   adam      Adam in place of SGD with momentum
 *   change    another layer appears after some steps; freeze: one is not trained any more
 *   large     layers 40 times as long; equal: all layers have the same size
 *   poll      a nonblocking communicator
 *   capture   a graph with reductions of a gradient's size, launched every step
 *   held      the device begins with a step when all of it was enqueued, from step 30 on
 *   pair      two communicators in two threads
 *   open      ends without ending the communicator; abort: by ncclCommAbort()
 *   meet      msdu_attach_meet(), if it is there, before the last step
 *   forks     a child process every few steps, as data loaders are
 *   differ    the last rank reduces an element less in the middle; dies: it is killed there
 *   local=H   parameter averaging every H steps by hand, from step learned=L on, after warmup=W
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

#define LAYERS_MAX 4
#define STEPS_MAX  200
#define MOMENTUM   0.9
#define RATE       0.02
#define LIMIT_MS   40000
#define CAPTURED   5

typedef struct trainer {
    int rank, ranks, steps, layers, local, learned, warmup, seed;
    bool group, streams, moving, apart, is_double, mean, late, same, adam, change, freeze, poll;
    bool capture, held, open, abort, meet, forks, differ, dies, is_alone;
    size_t count[LAYERS_MAX];
    double *weight[LAYERS_MAX]; /* device, as all below */
    double *velocity[LAYERS_MAX];
    double *second[LAYERS_MAX];
    void *gradient[LAYERS_MAX];
    void *reduced[LAYERS_MAX];
    double *sums; /* of a step: loss and nothing */
    float *norms;
    int *ones;
    float *graphed;
    cudaStream_t stream[2];
    cudaEvent_t event;
    cudaGraphExec_t graph;
    ncclComm_t comm;
    _Atomic int opened;
    int bad;
} trainer;

/* What a piece of work on a stream does; freed by it. */
typedef struct job {
    trainer *t;
    int step, layer;
    void *gradient;
    double scale;
} job;

static void check(int code, const char *what)
{
    if (code != 0 && code != (int)ncclInProgress) {
        (void)fprintf(stderr, "trainer: %s answered %d\n", what, code);
        _exit(3);
    }
}

static void *take(size_t bytes)
{
    void *memory = NULL;
    check((int)cudaMalloc(&memory, bytes), "cudaMalloc");
    return memory;
}

static void *take_zeros(size_t bytes)
{
    void *memory = take(bytes);
    memset(memory, 0, bytes);
    return memory;
}

static double noise(unsigned a, unsigned b, unsigned c, unsigned d)
{
    unsigned x = a * 2654435761U ^ b * 2246822519U ^ c * 3266489917U ^ d * 668265263U;
    x ^= x >> 15;
    x *= 2246822519U;
    x ^= x >> 13;
    return (double)(x % 20001) / 10000.0 - 1.0;
}

static cudaStream_t stream_of(const trainer *t, int layer)
{
    return t->stream[t->streams ? layer % 2 : 0];
}

static void enqueue(trainer *t, cudaHostFn_t function, job j)
{
    job *one = malloc(sizeof(*one));
    if (one == NULL) {
        _exit(5);
    }
    *one = j;
    check((int)cudaLaunchHostFunc(stream_of(t, j.layer), function, one), "cudaLaunchHostFunc");
}

/* --- on the device --- */

static void backward(void *argument)
{
    job *j = argument;
    trainer *t = j->t;
    double loss = 0;
    unsigned rank = t->same ? 0 : (unsigned)t->rank;
    for (size_t i = 0; i < t->count[j->layer]; i++) {
        double target = sin((double)i * 0.1 + j->layer + t->seed) +
                        noise((unsigned)j->step, rank, (unsigned)j->layer, (unsigned)i);
        double error = t->weight[j->layer][i] - target;
        loss += 0.5 * error * error;
        if (t->is_double) {
            ((double *)j->gradient)[i] = error * j->scale;
        } else {
            ((float *)j->gradient)[i] = (float)(error * j->scale);
        }
    }
    double *sums = t->sums + (size_t)LAYERS_MAX * 2 * (size_t)j->step;
    sums[j->layer] = loss;
    sums[LAYERS_MAX + j->layer] = 1;
    free(j);
}

static void update(void *argument)
{
    job *j = argument;
    trainer *t = j->t;
    for (size_t i = 0; i < t->count[j->layer]; i++) {
        double g = j->scale *
                   (t->is_double ? ((double *)j->gradient)[i] : (double)((float *)j->gradient)[i]);
        double *v = &t->velocity[j->layer][i];
        double *s = &t->second[j->layer][i];
        if (t->adam) {
            *v = 0.9 * *v + 0.1 * g;
            *s = 0.999 * *s + 0.001 * g * g;
            double v_hat = *v / (1 - pow(0.9, j->step + 1));
            double s_hat = *s / (1 - pow(0.999, j->step + 1));
            t->weight[j->layer][i] -= RATE * v_hat / (sqrt(s_hat) + 1e-8);
        } else {
            *v = MOMENTUM * *v + g;
            t->weight[j->layer][i] -= RATE * *v;
        }
    }
    free(j);
}

static void divide(void *argument)
{
    job *j = argument;
    for (size_t i = 0; i < j->t->count[j->layer]; i++) {
        j->t->weight[j->layer][i] /= j->t->ranks;
    }
    free(j);
}

static void measure(void *argument)
{
    job *j = argument;
    trainer *t = j->t;
    t->norms[j->step] = 0;
    for (size_t i = 0; i < t->count[0]; i++) {
        t->norms[j->step] += (float)(t->weight[0][i] * t->weight[0][i]);
    }
    t->ones[j->step] = 1;
    free(j);
}

static void pass_gate(void *argument)
{
    job *j = argument;
    while (atomic_load(&j->t->opened) <= j->step) {
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    free(j);
}

static void fill_graphed(void *argument)
{
    trainer *t = argument;
    for (int i = 0; i < 3001; i++) {
        t->graphed[i] = (float)(t->rank + i % 7);
    }
}

static void check_graphed(void *argument)
{
    trainer *t = argument;
    float ranks = (float)t->ranks;
    for (int i = 0; i < 3001; i++) {
        float once = ranks * (ranks - 1) / 2 + ranks * (float)(i % 7);
        t->bad += t->graphed[i] == once * powf(ranks, CAPTURED - 1) ? 0 : 1;
    }
}

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

static void reduce_gradients(trainer *t, int first)
{
    ncclDataType_t type = t->is_double ? ncclFloat64 : ncclFloat32;
    group(t, ncclGroupStart, 2);
    for (int l = first; l < t->layers; l++) {
        void *recv = t->apart ? t->reduced[l] : t->gradient[l];
        reduce(t, t->gradient[l], recv, t->count[l], type, t->mean ? ncclAvg : ncclSum,
               stream_of(t, l));
    }
    group(t, ncclGroupEnd, 2);
}

static void average_parameters(trainer *t)
{
    for (int l = 0; l < t->layers; l++) {
        reduce(t, t->weight[l], t->weight[l], t->count[l], ncclFloat64, ncclSum, stream_of(t, l));
        enqueue(t, divide, (job){.t = t, .layer = l});
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
    int first = t->freeze && step >= t->steps / 2 ? 1 : 0;
    bool is_alone = t->local > 0 && step >= t->learned;
    double before = is_alone || t->mean || t->late ? 1.0 : 1.0 / t->ranks;
    double after = is_alone || t->mean || !t->late ? 1.0 : 1.0 / t->ranks;
    if (t->held && step >= 30) {
        enqueue(t, pass_gate, (job){.t = t, .step = step});
    }
    for (int l = 0; l < t->layers; l++) {
        enqueue(t, backward, (job){t, step, l, t->gradient[l], before});
    }
    if (!is_alone) {
        reduce_gradients(t, first);
    }
    for (int l = first; l < t->layers; l++) {
        void *g = t->apart && !is_alone ? t->reduced[l] : t->gradient[l];
        enqueue(t, update, (job){t, step, l, g, after});
    }
    int since = step - t->learned + 1;
    if (is_alone && (since <= t->warmup || (since - t->warmup) % t->local == 0)) {
        average_parameters(t);
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
    void *symbol = dlsym(RTLD_DEFAULT, "msdu_attach_meet");
    void (*meet)(void) = NULL;
    if (symbol != NULL && t->meet && step == t->steps - 1) {
        memcpy(&meet, &symbol, sizeof(symbol));
        meet();
    }
}

/* --- begin and end --- */

static bool has_word(int argc, char **argv, const char *word)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], word) == 0) {
            return true;
        }
    }
    return false;
}

static int number(int argc, char **argv, const char *name, int otherwise)
{
    size_t length = strlen(name);
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], name, length) == 0 && argv[i][length] == '=') {
            return (int)strtol(argv[i] + length + 1, NULL, 10);
        }
    }
    return otherwise;
}

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
    } words[] = {{"group", &t->group},   {"streams", &t->streams},  {"moving", &t->moving},
                 {"apart", &t->apart},   {"double", &t->is_double}, {"mean", &t->mean},
                 {"late", &t->late},     {"same", &t->same},        {"adam", &t->adam},
                 {"change", &t->change}, {"freeze", &t->freeze},    {"poll", &t->poll},
                 {"held", &t->held},     {"capture", &t->capture},  {"open", &t->open},
                 {"abort", &t->abort},   {"meet", &t->meet},        {"forks", &t->forks},
                 {"differ", &t->differ}, {"dies", &t->dies}};
    const size_t sizes[LAYERS_MAX] = {513, 700, 3001, 2000};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        *words[i].flag = has_word(argc, argv, words[i].word);
    }
    t->rank = (int)strtol(getenv("RANK"), NULL, 10);
    t->ranks = (int)strtol(getenv("WORLD_SIZE"), NULL, 10);
    t->steps = number(argc, argv, "steps", 60);
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
        (void)printf("%sstep %d loss %.17g norm %.9g\n", t->seed > 0 ? "second " : "", step,
                     loss / t->ranks, (double)t->norms[step]);
        t->bad += t->ones[step] == t->ranks ? 0 : 1;
    }
    check(t->bad, "a sum that is no gradient");
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
        t->layers = t->change && step >= t->steps / 2 ? LAYERS_MAX : t->layers;
        trouble(t, step);
        move_memory(t);
        tell(t, step);
        take_step(t, step);
    }
    synchronize(t);
    print_log(t);
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
