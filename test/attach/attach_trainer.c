/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A data-parallel trainer as a user would write it, with MPI and nothing else: fits a small linear
 * model layer by layer with SGD and momentum. What it does with MPI is chosen by words:
 *   overlap   MPI_Iallreduce for each layer, MPI_Waitall before the update
 *   some      as overlap, with MPI_Waitsome; any: with MPI_Waitany; test: with MPI_Test
 *   persistent  as overlap, with persistent reductions, freed at the end
 *   counts    by the functions of large counts, where MPI has them
 *   moving    the gradients' memory is new in every step
 *   apart     separate send and receive buffers instead of MPI_IN_PLACE
 *   double    float64
 *   same      the same data on all ranks
 *   adam      Adam in place of SGD
 *   change    another layer appears after at=N steps (half of them)
 *   reorder   then layers are reduced in another order; resize: then layer 1 in two parts
 *   grid      four ranks as rows and columns of two: sums over rows, then over columns, named so
 *   large     layers 40 times as long
 *   freeze    then layer 0 is not trained any more; thaw: for 30 steps only
 *   nesterov  Nesterov's momentum; plain: none; damp: dampening 0.3
 *   equal     all layers have the same size
 *   decay     weight decay, and a learning rate that falls, told by msdu_attach_lr() if it is there
 *   late      the learning rate is told for the first time in step 40
 *   meet      msdu_attach_sync_after_step(), if it is there, before the last step
 *   forks     a child process every few steps, as data loaders are
 *   spike     gradients of one step are infinite on the last rank and huge on rank 0; before every
 *             update they are looked at, as where a loss is scaled, and such a step is left out
 *   unseen    the same, and nobody looks
 *   differ    the last rank reduces an element less in the middle; dies: it is killed there;
 *             leaves: it ends there, in peace
 *   local=H   parameter averaging every H steps by hand, from step W (learned=W) on, no gradients
 *             reduced after it: what the library is compared with
 *   steps=N   learned=W   h=H   at=N, of change alone: grown=N
 * Rank 0 prints the loss of each step and at the end a sum of the parameters, in full precision.
 */
#include "attach_words.h"

#include <mpi.h>
#if defined(OMPI_MAJOR_VERSION) && OMPI_MAJOR_VERSION < 5
#include <mpi-ext.h> /* persistent reductions */
#endif

#include <dlfcn.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LAYERS_MAX 4
#define DECAY      0.01
#define MOMENTUM   0.9
#define RATE       0.02

typedef struct trainer {
    bool is_overlap, is_some, is_any, is_test, is_moving, is_apart, is_double, is_same, is_adam;
    bool is_late, is_changing, is_equal, is_decaying, is_meeting, is_forking, is_differing,
        is_dying, is_leaving;
    bool is_freezing, is_thawing, is_frozen, is_large, is_reordering, is_resizing, is_nesterov;
    bool is_counted;
    bool is_changed; /* what is to change has */
    bool is_persistent;
    bool is_spiking, is_unseen, is_bad; /* is_bad: the present step is left out */
    int prepared;                       /* layers that have a persistent request */
    MPI_Request prepared_requests[LAYERS_MAX];
    double momentum, dampening;
    int steps, learned, local, warmup, at, grown;
    int rank, ranks, layers;
    int count[LAYERS_MAX];
    double *weight[LAYERS_MAX], *velocity[LAYERS_MAX], *second[LAYERS_MAX];
    void *gradient[LAYERS_MAX], *reduced[LAYERS_MAX];
    MPI_Comm comm;
    MPI_Comm row, column; /* MPI_COMM_NULL, or of a grid */
} trainer;

static double noise(unsigned step, unsigned rank, unsigned layer, unsigned i)
{
    unsigned x = step * 2654435761U + rank * 40503U + layer * 9176U + i * 2246822519U + 12345U;
    x ^= x >> 15;
    x *= 2246822519U;
    x ^= x >> 13;
    x *= 3266489917U;
    x ^= x >> 16;
    return (double)x / 4294967296.0 - 0.5;
}

static void allocate(trainer *t)
{
    static const int counts[LAYERS_MAX] = {3001, 700, 513, 2000};
    for (int l = 0; l < LAYERS_MAX; l++) {
        t->count[l] = t->is_equal ? 1024 : counts[l] * (t->is_large ? 40 : 1);
        size_t n = (size_t)t->count[l];
        t->weight[l] = calloc(n, sizeof(double));
        t->velocity[l] = calloc(n, sizeof(double));
        t->second[l] = calloc(n, sizeof(double));
        t->gradient[l] = calloc(n, sizeof(double));
        t->reduced[l] = calloc(n, sizeof(double));
    }
}

/* Each weight is drawn to a target of its own; the target differs by rank and step. */
static double backward(trainer *t, int step)
{
    double loss = 0;
    unsigned rank = t->is_same ? 0 : (unsigned)t->rank;
    for (int l = 0; l < t->layers; l++) {
        for (int i = 0; i < t->count[l]; i++) {
            double scale = 1.0 + noise(7, 99 + rank, (unsigned)l, (unsigned)i);
            double target =
                sin(i * 0.1 + l) + noise((unsigned)step, rank, (unsigned)l, (unsigned)i);
            double error = t->weight[l][i] - target;
            double g = scale * error;
            loss += 0.5 * scale * error * error;
            if (t->is_double) {
                ((double *)t->gradient[l])[i] = g;
            } else {
                ((float *)t->gradient[l])[i] = (float)g;
            }
        }
    }
    return loss;
}

static void spoil(trainer *t, int l, int i, double value)
{
    if (t->is_double) {
        ((double *)t->gradient[l])[i] = value;
    } else {
        ((float *)t->gradient[l])[i] = (float)value;
    }
}

static void spike(trainer *t, int step)
{
    if (t->is_spiking && step == t->at && t->rank == t->ranks - 1) {
        spoil(t, 1, 5, (double)INFINITY);
    } else if (t->is_spiking && step == t->at && t->rank == 0) {
        spoil(t, 2, 3, 1e30);
    }
}

static bool has_bad_gradient(const trainer *t)
{
    bool is_bad = false;
    for (int l = 0; l < t->layers; l++) {
        const float *narrow = t->gradient[l];
        const double *wide = t->gradient[l];
        for (int i = 0; i < t->count[l]; i++) {
            is_bad = is_bad || !isfinite(t->is_double ? wide[i] : (double)narrow[i]);
        }
    }
    return is_bad;
}

static void move_memory(trainer *t)
{
    for (int l = 0; l < t->layers; l++) {
        size_t bytes = (size_t)t->count[l] * sizeof(double);
        void *gradient = malloc(bytes + 64);
        void *reduced = malloc(bytes + 64);
        free(t->gradient[l]);
        free(t->reduced[l]);
        t->gradient[l] = gradient;
        t->reduced[l] = reduced;
    }
}

static void wait_for_all(const trainer *t, MPI_Request *requests)
{
    int done[LAYERS_MAX];
    MPI_Status statuses[LAYERS_MAX];
    int left = t->layers;
    if (t->is_some) {
        while (left > 0) {
            int count = 0;
            MPI_Waitsome(t->layers, requests, &count, done, statuses);
            left -= count;
        }
    } else if (t->is_any) {
        for (; left > 0; left--) {
            int index = 0;
            MPI_Waitany(t->layers, requests, &index, MPI_STATUS_IGNORE);
        }
    } else if (t->is_test) {
        for (int l = 0; l < t->layers; l++) {
            for (int flag = 0; !flag;) {
                MPI_Test(&requests[l], &flag, MPI_STATUS_IGNORE);
            }
        }
    } else {
        MPI_Waitall(t->layers, requests, statuses);
    }
}

static double rate_of(const trainer *t, int step)
{
    return t->is_decaying ? RATE * (1.0 - 0.5 * step / t->steps) : RATE;
}

/* What a user may do who knows of the library, and does not link it. */
static void tell(const trainer *t, int step)
{
    const bool is_telling = t->is_decaying || (t->is_late && step == 40);
    void *symbol =
        dlsym(RTLD_DEFAULT, is_telling ? "msdu_attach_lr" : "msdu_attach_sync_after_step");
    void (*tell_rate)(double) = NULL;
    void (*meet)(void) = NULL;
    if (symbol != NULL && is_telling) {
        memcpy(&tell_rate, &symbol, sizeof(symbol));
        tell_rate(rate_of(t, step));
    } else if (symbol != NULL && t->is_meeting && step == t->steps - 1) {
        memcpy(&meet, &symbol, sizeof(symbol));
        meet();
    }
}

static void trouble(trainer *t, int step)
{
    if (t->is_forking && step % 8 == 5) {
        pid_t pid = fork();
        if (pid == 0) {
            _exit(0);
        }
        (void)waitpid(pid, NULL, 0);
    }
    if (t->rank == t->ranks - 1 && step == t->steps / 2) {
        if (t->is_dying) {
            (void)raise(SIGKILL);
        }
        if (t->is_leaving) {
            (void)MPI_Finalize();
            exit(EXIT_SUCCESS);
        }
        t->count[1] -= t->is_differing ? 1 : 0;
    }
}

/* Layer 1 from now on. */
static void reduce_halves(const trainer *t, int l)
{
    MPI_Datatype type = t->is_double ? MPI_DOUBLE : MPI_FLOAT;
    size_t width = t->is_double ? sizeof(double) : sizeof(float);
    int half = t->count[l] / 2 - 10;
    char *rest = (char *)t->gradient[l] + (size_t)half * width;
    MPI_Allreduce(MPI_IN_PLACE, t->gradient[l], half, type, MPI_SUM, t->comm);
    MPI_Allreduce(MPI_IN_PLACE, rest, t->count[l] - half, type, MPI_SUM, t->comm);
}

#if defined(OMPI_MAJOR_VERSION) && OMPI_MAJOR_VERSION < 5
#define MPI_Allreduce_init MPIX_Allreduce_init
#endif

static void reduce_persistently(trainer *t)
{
    MPI_Datatype type = t->is_double ? MPI_DOUBLE : MPI_FLOAT;
    for (; t->prepared < t->layers; t->prepared++) {
        int l = t->prepared;
        MPI_Allreduce_init(MPI_IN_PLACE, t->gradient[l], t->count[l], type, MPI_SUM, t->comm,
                           MPI_INFO_NULL, &t->prepared_requests[l]);
    }
    MPI_Startall(t->layers, t->prepared_requests);
    wait_for_all(t, t->prepared_requests);
}

/* As bindings do that know MPI 4. */
static void reduce_layer(const trainer *t, const void *send, void *recv, int l,
                         MPI_Request *request)
{
    MPI_Datatype type = t->is_double ? MPI_DOUBLE : MPI_FLOAT;
#if MPI_VERSION >= 4
    if (t->is_counted && t->is_overlap) {
        MPI_Iallreduce_c(send, recv, t->count[l], type, MPI_SUM, t->comm, request);
        return;
    }
    if (t->is_counted) {
        MPI_Allreduce_c(send, recv, t->count[l], type, MPI_SUM, t->comm);
        return;
    }
#endif
    if (t->is_overlap) {
        MPI_Iallreduce(send, recv, t->count[l], type, MPI_SUM, t->comm, request);
    } else {
        MPI_Allreduce(send, recv, t->count[l], type, MPI_SUM, t->comm);
    }
}

static void reduce_gradients(trainer *t)
{
    MPI_Request requests[LAYERS_MAX];
    if (t->is_persistent) {
        reduce_persistently(t);
        return;
    }
    MPI_Datatype type = t->is_double ? MPI_DOUBLE : MPI_FLOAT;
    size_t width = t->is_double ? sizeof(double) : sizeof(float);
    for (int at = t->is_frozen ? 1 : 0; at < t->layers; at++) {
        int l = t->is_reordering && t->is_changed && at > 0 ? t->layers - at : at;
        const void *send = t->is_apart ? t->gradient[l] : MPI_IN_PLACE;
        void *recv = t->is_apart ? t->reduced[l] : t->gradient[l];
        if (t->is_resizing && t->is_changed && l == 1) {
            reduce_halves(t, l);
        } else if (t->row != MPI_COMM_NULL && !t->is_overlap) {
            MPI_Allreduce(send, recv, t->count[l], type, MPI_SUM, t->row);
            MPI_Allreduce(MPI_IN_PLACE, recv, t->count[l], type, MPI_SUM, t->column);
        } else {
            reduce_layer(t, send, recv, l, &requests[l]);
        }
    }
    if (t->is_overlap) {
        wait_for_all(t, requests);
    }
    for (int l = 0; t->is_apart && l < t->layers; l++) {
        memcpy(t->gradient[l], t->reduced[l], (size_t)t->count[l] * width);
    }
}

static void update(trainer *t, int step, double scale)
{
    for (int l = t->is_frozen ? 1 : 0; l < t->layers; l++) {
        for (int i = 0; i < t->count[l]; i++) {
            double g =
                t->is_double ? ((double *)t->gradient[l])[i] : (double)((float *)t->gradient[l])[i];
            double *v = &t->velocity[l][i];
            double *s = &t->second[l][i];
            g = g * scale + (t->is_decaying ? DECAY * t->weight[l][i] : 0);
            if (t->is_adam) {
                *v = 0.9 * *v + 0.1 * g;
                *s = 0.999 * *s + 0.001 * g * g;
                double v_hat = *v / (1 - pow(0.9, step + 1));
                double s_hat = *s / (1 - pow(0.999, step + 1));
                t->weight[l][i] -= RATE * v_hat / (sqrt(s_hat) + 1e-8);
            } else {
                *v = t->momentum * *v + (step > 0 ? 1.0 - t->dampening : 1.0) * g;
                t->weight[l][i] -= rate_of(t, step) * (t->is_nesterov ? g + t->momentum * *v : *v);
            }
        }
    }
}

static void average_parameters(trainer *t)
{
    for (int l = 0; l < t->layers; l++) {
        MPI_Allreduce(MPI_IN_PLACE, t->weight[l], t->count[l], MPI_DOUBLE, MPI_SUM, t->comm);
        for (int i = 0; i < t->count[l]; i++) {
            t->weight[l][i] /= t->ranks;
        }
    }
}

/* Losses, a norm and a count: what is no gradient, and must be exact. */
static void report(trainer *t, int step, double loss)
{
    double sums[2] = {loss, 0};
    float norm = 0;
    int mine = t->is_bad ? 1001 : 1;
    int one = mine;
    for (int i = 0; i < t->count[0]; i++) {
        norm += (float)(t->weight[0][i] * t->weight[0][i]);
    }
    MPI_Allreduce(MPI_IN_PLACE, &one, 1, MPI_INT, MPI_SUM, t->comm);
    MPI_Allreduce(MPI_IN_PLACE, sums, 2, MPI_DOUBLE, MPI_SUM, t->comm);
    MPI_Allreduce(MPI_IN_PLACE, &norm, 1, MPI_FLOAT, MPI_MAX, t->comm);
    if (one != t->ranks * mine) { /* some rank left the step out, and not all did */
        (void)fprintf(stderr, "step %d: a count of ranks became %d\n", step, one);
        MPI_Abort(t->comm, 3);
    }
    if (t->rank == 0) {
        (void)printf("step %d loss %.17g norm %.9g%s\n", step, sums[0] / t->ranks, (double)norm,
                     t->is_bad ? " left out" : "");
    }
}

/* The largest difference between ranks. */
static void report_layer(trainer *t, int l)
{
    double worst = 0;
    MPI_Allreduce(t->weight[l], t->velocity[l], t->count[l], MPI_DOUBLE, MPI_MIN, t->comm);
    MPI_Allreduce(t->weight[l], t->second[l], t->count[l], MPI_DOUBLE, MPI_MAX, t->comm);
    for (int i = 0; i < t->count[l]; i++) {
        worst = fmax(worst, t->second[l][i] - t->velocity[l][i]);
    }
    if (t->rank == 0) {
        (void)printf("layer %d apart %.3g\n", l, worst);
    }
}

/* How far ranks are apart, and a fingerprint of where they are. */
static void report_end(trainer *t)
{
    double sums[2] = {0, 0};
    double low[2];
    double high[2];
    for (int l = 0; l < t->layers; l++) {
        report_layer(t, l);
        for (int i = 0; i < t->count[l]; i++) {
            sums[0] += t->weight[l][i] * noise(1, 2, 3, (unsigned)i);
            sums[1] += t->weight[l][i] * t->weight[l][i];
        }
    }
    MPI_Allreduce(sums, low, 2, MPI_DOUBLE, MPI_MIN, t->comm);
    MPI_Allreduce(sums, high, 2, MPI_DOUBLE, MPI_MAX, t->comm);
    if (t->rank == 0) {
        (void)printf("end %.17g %.17g apart %.3g\n", high[0], high[1],
                     fmax(high[0] - low[0], high[1] - low[1]));
    }
}

static void train(trainer *t)
{
    for (int step = 0; step < t->steps; step++) {
        t->is_changed = step >= t->at;
        t->layers = t->is_changing && step >= t->grown ? LAYERS_MAX : t->layers;
        if (t->is_moving) {
            move_memory(t);
        }
        t->is_frozen = t->is_freezing && t->is_changed && (!t->is_thawing || step < t->at + 30);
        trouble(t, step);
        tell(t, step);
        double loss = backward(t, step);
        bool is_alone = t->local > 0 && step >= t->learned;
        spike(t, step);
        if (!is_alone) {
            reduce_gradients(t);
        }
        t->is_bad = t->is_spiking && !t->is_unseen && has_bad_gradient(t);
        if (!t->is_bad) {
            update(t, step, is_alone ? 1.0 : 1.0 / t->ranks);
        }
        int since = step - t->learned + 1; /* steps of the library's own, with this one */
        bool is_warm = since <= t->warmup;
        if (is_alone && (is_warm || (since - t->warmup) % t->local == 0)) {
            average_parameters(t);
        }
        report(t, step, loss);
    }
}

static void make_grid(trainer *t)
{
    MPI_Comm_split(t->comm, t->rank / 2, t->rank, &t->row);
    MPI_Comm_split(t->comm, t->rank % 2, t->rank, &t->column);
    MPI_Comm_set_name(t->row, "row");
    MPI_Comm_set_name(t->column, "column");
}

int main(int argc, char **argv)
{
    trainer t = {.layers = LAYERS_MAX - 1};
    MPI_Init(&argc, &argv);
    MPI_Comm_dup(MPI_COMM_WORLD, &t.comm);
    MPI_Comm_rank(t.comm, &t.rank);
    MPI_Comm_size(t.comm, &t.ranks);
    t.row = t.column = MPI_COMM_NULL;
    if (has_word(argc, argv, "grid")) {
        make_grid(&t);
    }
    t.is_counted = has_word(argc, argv, "counts");
    t.is_some = has_word(argc, argv, "some");
    t.is_any = has_word(argc, argv, "any");
    t.is_test = has_word(argc, argv, "test");
    t.is_overlap = has_word(argc, argv, "overlap") || t.is_some || t.is_any || t.is_test;
    t.is_persistent = has_word(argc, argv, "persistent");
    t.is_moving = has_word(argc, argv, "moving");
    t.is_apart = has_word(argc, argv, "apart");
    t.is_double = has_word(argc, argv, "double");
    t.is_same = has_word(argc, argv, "same");
    t.is_adam = has_word(argc, argv, "adam");
    t.is_changing = has_word(argc, argv, "change");
    t.is_large = has_word(argc, argv, "large");
    t.is_freezing = has_word(argc, argv, "freeze");
    t.is_thawing = has_word(argc, argv, "thaw");
    t.is_freezing = t.is_freezing || t.is_thawing;
    t.is_reordering = has_word(argc, argv, "reorder");
    t.is_resizing = has_word(argc, argv, "resize");
    t.is_nesterov = has_word(argc, argv, "nesterov");
    t.momentum = has_word(argc, argv, "plain") ? 0 : MOMENTUM;
    t.dampening = has_word(argc, argv, "damp") ? 0.3 : 0;
    t.is_equal = has_word(argc, argv, "equal");
    t.is_decaying = has_word(argc, argv, "decay");
    t.is_late = has_word(argc, argv, "late");
    t.is_unseen = has_word(argc, argv, "unseen");
    t.is_spiking = has_word(argc, argv, "spike") || t.is_unseen;
    t.is_meeting = has_word(argc, argv, "meet");
    t.is_forking = has_word(argc, argv, "forks");
    t.is_differing = has_word(argc, argv, "differ");
    t.is_dying = has_word(argc, argv, "dies");
    t.is_leaving = has_word(argc, argv, "leaves");
    t.steps = number(argc, argv, "steps", 60);
    t.at = number(argc, argv, "at", t.steps / 2);
    t.grown = number(argc, argv, "grown", t.at);
    t.learned = number(argc, argv, "learned", 0);
    t.local = number(argc, argv, "local", 0);
    t.warmup = number(argc, argv, "warmup", 0);
    allocate(&t);
    train(&t);
    report_end(&t);
    for (int l = 0; l < t.prepared; l++) {
        MPI_Request_free(&t.prepared_requests[l]);
    }
    if (t.row != MPI_COMM_NULL) {
        MPI_Comm_free(&t.row);
        MPI_Comm_free(&t.column);
    }
    MPI_Finalize();
    return 0;
}
