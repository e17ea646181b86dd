/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer of two models at once, each by a thread and a communicator of its own, and a third
 * thread that tells the learning rate all the time, as a scheduler beside the training loop would.
 * Halfway each model gets another layer. All ranks have the same data, so sums are known to the
 * bit. With an argument ranks come to the communicators in different orders. Knows nothing of the
 * library but the name of one function.
 */
#include <mpi.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MODELS 2
#define LAYERS 4
#define STEPS  60
#define RATE   0.125

typedef struct model {
    pthread_t thread;
    MPI_Comm comm;
    int ranks;
    bool is_late; /* in coming to its communicator */
    double *weight[LAYERS], *velocity[LAYERS], *gradient[LAYERS];
} model;

static const int counts[LAYERS] = {3001, 700, 513, 2000};
static atomic_bool is_over;

static void update(model *m, int l)
{
    for (int i = 0; i < counts[l]; i++) {
        m->velocity[l][i] = 0.5 * m->velocity[l][i] + m->gradient[l][i] / m->ranks;
        m->weight[l][i] -= RATE * m->velocity[l][i];
    }
}

static void *train(void *argument)
{
    model *m = argument;
    const struct timespec while_others_begin = {.tv_nsec = m->is_late ? 300000000 : 0};
    (void)nanosleep(&while_others_begin, NULL);
    for (int step = 0; step < STEPS; step++) {
        int layers = step < STEPS / 2 ? LAYERS - 1 : LAYERS;
        int one = 1;
        for (int l = 0; l < layers; l++) {
            for (int i = 0; i < counts[l]; i++) {
                m->gradient[l][i] = m->weight[l][i] - i % 7;
            }
            MPI_Allreduce(MPI_IN_PLACE, m->gradient[l], counts[l], MPI_DOUBLE, MPI_SUM, m->comm);
        }
        for (int l = 0; l < layers; l++) {
            update(m, l);
        }
        MPI_Allreduce(MPI_IN_PLACE, &one, 1, MPI_INT, MPI_SUM, m->comm);
    }
    return NULL;
}

static void *tell(void *argument)
{
    void *symbol = dlsym(RTLD_DEFAULT, "msdu_attach_lr");
    void (*tell_rate)(double) = NULL;
    (void)argument;
    memcpy(&tell_rate, &symbol, sizeof(symbol));
    while (tell_rate != NULL && !atomic_load(&is_over)) {
        tell_rate(RATE);
    }
    return NULL;
}

static void begin(model *m)
{
    MPI_Comm_dup(MPI_COMM_WORLD, &m->comm);
    MPI_Comm_size(m->comm, &m->ranks);
    for (int l = 0; l < LAYERS; l++) {
        m->weight[l] = calloc((size_t)counts[l], sizeof(double));
        m->velocity[l] = calloc((size_t)counts[l], sizeof(double));
        m->gradient[l] = calloc((size_t)counts[l], sizeof(double));
    }
}

static void report(const model *m, int rank)
{
    double sum = 0;
    for (int l = 0; l < LAYERS; l++) {
        for (int i = 0; i < counts[l]; i++) {
            sum += m->weight[l][i] * (1 + i % 3);
        }
    }
    (void)printf("rank %d: %.17g\n", rank, sum);
}

int main(int argc, char **argv)
{
    model models[MODELS];
    pthread_t teller = 0;
    int rank = 0;
    int level = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 0; i < MODELS; i++) {
        begin(&models[i]);
    }
    if (level != MPI_THREAD_MULTIPLE || pthread_create(&teller, NULL, tell, NULL) != 0) {
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    for (int i = 0; i < MODELS; i++) {
        models[i].is_late = argc > 1 && (i + rank) % 2 != 0;
        if (pthread_create(&models[i].thread, NULL, train, &models[i]) != 0) {
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
    for (int i = 0; i < MODELS; i++) {
        (void)pthread_join(models[i].thread, NULL);
        report(&models[i], rank);
    }
    atomic_store(&is_over, true);
    (void)pthread_join(teller, NULL);
    MPI_Finalize();
    return 0;
}
