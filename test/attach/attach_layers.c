/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer with equal layers, as a user would write it: an embedding, layers of four tensors, a
 * head, one MPI_Allreduce a tensor and nothing between, SGD with momentum. Each rank draws weights
 * to targets of its own, with one curvature for all, so the mean over ranks takes the same way
 * whether ranks meet in every step or not. Words:
 *   layers=N  steps=N  reverse  single (float32)  nonblocking  staged (all through one buffer)
 *   residual  blocks as of a ResNet-50 in place of the layers: 161 tensors, 30 of them small
 *   bare  neither embedding nor head;  shared  layers take turns on one set of buffers
 *   tail=N  N others come behind the layers, instead of embedding and head
 *   frozen=L  from the middle on layer L is not trained any more; eval=N  losses every N steps
 *   swap=N  from step N on layers 3 and 7 come in each other's place
 *   shuffle=N  from step N on all come in another order in each step
 *   stage=N  from step N on all go through one buffer
 *   mean=N  before step N, of all ranks' parameters;  bcast=N  the first rank's parameters to all
 *   micro=N  reductions of each gradient before an update;  barrier  behind each of them
 *   average  at the end, of all ranks' parameters
 *   saves  behind MPI_Finalize, on the last rank late and beside a child process; status=N  its end
 * Rank 0 prints how far ranks are apart, how far the mean is from the best, and a fingerprint.
 */
#include "attach_words.h"

#include <mpi.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TENSORS_MAX 1024
#define RATE        0.05
#define MOMENTUM    0.9

typedef struct trainer {
    int layers, steps, frozen, evaluation, swap, micro, stage_step, mean_step, bcast_step, tail;
    int shuffle;
    bool is_reverse, is_single, is_nonblocking, is_staged, is_residual;
    bool is_bare, is_shared, has_barriers;
    int rank, ranks, count;
    int size[TENSORS_MAX];
    int layer[TENSORS_MAX]; /* -1: of none */
    double *weight[TENSORS_MAX], *velocity[TENSORS_MAX], *gradient[TENSORS_MAX];
    double *pending[TENSORS_MAX]; /* sums of micro-batches */
    double *stage;
    double *turns[4]; /* of the tensors of a layer */
} trainer;

static void add(trainer *t, int size, int layer)
{
    t->size[t->count] = size;
    t->layer[t->count] = layer;
    t->count++;
}

/* Stages of equal blocks, three convolutions and their normalization each; a 50th of the size. */
static void add_residual(trainer *t)
{
    static const int blocks[] = {3, 4, 6, 3};
    add(t, 9408 / 8, -1);
    add(t, 64, -1);
    add(t, 64, -1);
    for (int stage = 0; stage < 4; stage++) {
        const int width = 64 << stage;
        for (int b = 0; b < blocks[stage]; b++) {
            for (int c = 0; c < 3; c++) {
                add(t, width * (c == 1 ? 36 : 16), -1);
                add(t, c == 2 ? 4 * width : width, -1);
                add(t, c == 2 ? 4 * width : width, -1);
            }
            if (b == 0) {
                add(t, width * 32, -1);
                add(t, 4 * width, -1);
                add(t, 4 * width, -1);
            }
        }
    }
    add(t, 2048 * 10, -1);
    add(t, 10, -1);
}

static void build(trainer *t)
{
    static const int sizes[] = {768, 300, 1024, 256};
    if (t->is_residual) {
        add_residual(t);
    } else if (t->is_bare) {
        for (int l = 0; l < 4 * t->layers; l++) {
            add(t, sizes[l % (t->is_staged ? 1 : 4)], l / 4);
        }
    } else {
        if (t->tail == 0) {
            add(t, 5000, -1);
        }
        for (int l = 0; l < t->layers; l++) {
            for (int k = 0; k < 4; k++) {
                add(t, sizes[k], l);
            }
        }
        for (int i = 0; i < t->tail; i++) {
            add(t, 1500 + i, -1);
        }
        if (t->tail == 0) {
            add(t, 900, -1);
        }
    }
    for (int i = 0; i < t->count; i++) {
        t->weight[i] = calloc((size_t)t->size[i], sizeof(double));
        t->velocity[i] = calloc((size_t)t->size[i], sizeof(double));
        t->gradient[i] = calloc((size_t)t->size[i], sizeof(double));
        t->pending[i] = calloc((size_t)t->size[i], sizeof(double));
    }
    t->stage = calloc(1 << 16, sizeof(double));
    for (int i = 0; i < 4; i++) {
        t->turns[i] = t->is_shared ? calloc(1 << 12, sizeof(double)) : t->stage;
    }
}

static double target(int rank, int tensor, int i)
{
    return sin(1.0 + rank * 2.7 + tensor * 0.37 + i * 0.11);
}

static double curvature(int tensor, int i)
{
    return 0.5 + 0.4 * cos(tensor * 1.3 + i * 0.7);
}

static void backward(trainer *t, int k)
{
    float *narrow = (float *)t->gradient[k];
    for (int i = 0; i < t->size[k]; i++) {
        double g = curvature(k, i) * (t->weight[k][i] - target(t->rank, k, i));
        if (t->is_single) {
            narrow[i] = (float)g;
        } else {
            t->gradient[k][i] = g;
        }
    }
}

static void reduce(trainer *t, int k, MPI_Request *request)
{
    MPI_Datatype type = t->is_single ? MPI_FLOAT : MPI_DOUBLE;
    const size_t bytes = (size_t)t->size[k] * (t->is_single ? sizeof(float) : sizeof(double));
    if (t->is_nonblocking) {
        MPI_Iallreduce(MPI_IN_PLACE, t->gradient[k], t->size[k], type, MPI_SUM, MPI_COMM_WORLD,
                       request);
    } else if (t->is_staged || (t->is_shared && t->layer[k] >= 0)) {
        double *stage = t->turns[k % 4];
        memcpy(stage, t->gradient[k], bytes);
        MPI_Allreduce(MPI_IN_PLACE, stage, t->size[k], type, MPI_SUM, MPI_COMM_WORLD);
        memcpy(t->gradient[k], stage, bytes);
    } else {
        MPI_Allreduce(MPI_IN_PLACE, t->gradient[k], t->size[k], type, MPI_SUM, MPI_COMM_WORLD);
    }
}

static void update(trainer *t, int k)
{
    const float *narrow = (const float *)t->gradient[k];
    for (int i = 0; i < t->size[k]; i++) {
        double g = (t->is_single ? (double)narrow[i] : t->gradient[k][i]) / t->ranks;
        t->velocity[k][i] = MOMENTUM * t->velocity[k][i] + g;
        t->weight[k][i] -= RATE * t->velocity[k][i];
    }
}

static bool is_frozen(const trainer *t, int k, int step)
{
    return t->layer[k] >= 0 && t->layer[k] == t->frozen && step >= t->steps / 2;
}

/* Which tensor comes in this place? */
static int tensor_at(const trainer *t, int at, int step)
{
    if (t->shuffle >= 0 && step >= t->shuffle) { /* 3 and 7 do not divide the count */
        return (at * (step % 2 == 0 ? 3 : 7) + step * step) % t->count;
    }
    const int k = t->is_reverse ? t->count - 1 - at : at;
    const bool is_swapped = t->swap >= 0 && step >= t->swap;
    const int moved = t->layer[k] == 3 ? 16 : t->layer[k] == 7 ? -16 : 0;
    return is_swapped ? k + moved : k;
}

/* One by one, several times, with updates that add up. */
static void train_micro(trainer *t)
{
    for (int step = 0; step < t->steps * t->micro; step++) {
        for (int k = 0; k < t->count; k++) {
            backward(t, k);
            reduce(t, k, NULL);
            for (int i = 0; i < t->size[k]; i++) {
                const double sum = step % t->micro == 0 ? 0 : t->pending[k][i];
                t->pending[k][i] = sum + t->gradient[k][i] / t->micro;
            }
            if (t->has_barriers) {
                MPI_Barrier(MPI_COMM_WORLD);
            }
        }
        for (int k = 0; k < t->count && step % t->micro == t->micro - 1; k++) {
            memcpy(t->gradient[k], t->pending[k], (size_t)t->size[k] * sizeof(double));
            update(t, k);
        }
    }
}

static void average(trainer *t)
{
    for (int k = 0; k < t->count; k++) {
        MPI_Allreduce(MPI_IN_PLACE, t->weight[k], t->size[k], MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < t->size[k]; i++) {
            t->weight[k][i] /= t->ranks;
        }
    }
}

/* What a trainer may do with its parameters on the way. */
static void meddle(trainer *t, int step)
{
    t->is_staged = t->is_staged || step == t->stage_step;
    if (step == t->mean_step) {
        average(t);
    }
    for (int k = 0; k < t->count && step == t->bcast_step; k++) {
        MPI_Bcast(t->weight[k], t->size[k], MPI_DOUBLE, 0, MPI_COMM_WORLD);
    }
}

static void train(trainer *t)
{
    static MPI_Request requests[TENSORS_MAX];
    static MPI_Status statuses[TENSORS_MAX];
    for (int step = 0; step < t->steps; step++) {
        int used[TENSORS_MAX];
        int count = 0;
        meddle(t, step);
        for (int at = 0; at < t->count; at++) {
            int k = tensor_at(t, at, step);
            if (!is_frozen(t, k, step)) {
                used[count] = k;
                backward(t, k);
                reduce(t, k, &requests[count]);
                count++;
            }
        }
        if (t->is_nonblocking) {
            MPI_Waitall(count, requests, statuses);
        }
        for (int i = 0; i < count; i++) {
            update(t, used[i]);
        }
        for (int i = 0; t->evaluation > 0 && step % t->evaluation == 0 && i < 7; i++) {
            double loss = i;
            MPI_Allreduce(MPI_IN_PLACE, &loss, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        }
    }
}

static void report(trainer *t)
{
    double apart = 0;
    double away = 0;
    double print = 0;
    for (int k = 0; k < t->count; k++) {
        const size_t bytes = (size_t)t->size[k] * sizeof(double);
        double *low = malloc(bytes);
        double *high = malloc(bytes);
        MPI_Reduce(t->weight[k], low, t->size[k], MPI_DOUBLE, MPI_MIN, 0, MPI_COMM_WORLD);
        MPI_Reduce(t->weight[k], high, t->size[k], MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        for (int i = 0; t->rank == 0 && i < t->size[k]; i++) {
            double best = 0;
            for (int r = 0; r < t->ranks; r++) {
                best += target(r, k, i) / t->ranks;
            }
            apart = fmax(apart, high[i] - low[i]);
            away = fmax(away, fabs(high[i] - best));
            print += high[i] * curvature(k + 5, i);
        }
        free(low);
        free(high);
    }
    if (t->rank == 0) {
        (void)printf("apart %.3g away %.3g print %.12g\n", apart, away, print);
    }
}

/* What is printed is written where the process ends. */
static void save(const trainer *t)
{
    int status = 0;
    (void)fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        exit(EXIT_SUCCESS); /* with its handlers, as a careless child does */
    }
    (void)waitpid(child, &status, 0);
    if (t->rank == t->ranks - 1) {
        (void)nanosleep(&(struct timespec){.tv_sec = 3},
                        NULL); /* more than it takes to be killed */
    }
    (void)printf("rank %d saved, child %d\n", t->rank, WEXITSTATUS(status));
}

int main(int argc, char **argv)
{
    static trainer t;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &t.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &t.ranks);
    t.layers = number(argc, argv, "layers", 12);
    t.steps = number(argc, argv, "steps", 100);
    t.frozen = number(argc, argv, "frozen", -1);
    t.evaluation = number(argc, argv, "eval", 0);
    t.swap = number(argc, argv, "swap", -1);
    t.shuffle = number(argc, argv, "shuffle", -1);
    t.micro = number(argc, argv, "micro", 1);
    t.stage_step = number(argc, argv, "stage", -1);
    t.mean_step = number(argc, argv, "mean", -1);
    t.bcast_step = number(argc, argv, "bcast", -1);
    t.is_bare = has_word(argc, argv, "bare");
    t.tail = number(argc, argv, "tail", 0);
    t.is_shared = has_word(argc, argv, "shared");
    t.has_barriers = has_word(argc, argv, "barrier");
    t.is_reverse = has_word(argc, argv, "reverse");
    t.is_single = has_word(argc, argv, "single");
    t.is_nonblocking = has_word(argc, argv, "nonblocking");
    t.is_staged = has_word(argc, argv, "staged");
    t.is_residual = has_word(argc, argv, "residual");
    build(&t);
    if (t.micro > 1 || t.has_barriers) {
        train_micro(&t);
    } else {
        train(&t);
    }
    if (has_word(argc, argv, "average")) {
        average(&t);
    }
    report(&t);
    MPI_Finalize();
    if (has_word(argc, argv, "saves")) {
        save(&t);
    }
    return number(argc, argv, "status", EXIT_SUCCESS);
}
