/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of an MPI job that uses the library over its own MPI. Linked with one MPI family:
 *   given    MPI_Init_thread() by the trainer, with enough threads; two contexts, one after another
 *   ours     the backend initializes MPI and ends it when the process exits
 *   single   MPI_Init() by the trainer: one clear error
 *   late     the last rank never joins: the others see the deadline
 *   hosts    ranks of even and of odd numbers are two hosts: local steps, groups of MPI
 *   early    the last rank finishes and ends MPI while the others train on: they are told its name
 */
#include <msdu/msdu.h>

#include <mpi.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 10007
#define STEPS 5

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            (void)fprintf(stderr, "line %d: %s; %s\n", __LINE__, #condition, msdu_last_error());   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static msdu_ctx *context(float *gradient, int64_t deadline_ms)
{
    msdu_config config = MSDU_CONFIG_INIT;
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    msdu_ctx *ctx = NULL;
    config.backend = "mpi";
    config.domain = "gradient";
    config.wire = "float32";
    config.deadline_ms = deadline_ms;
    REQUIRE(msdu_create(&config, &ctx) == MSDU_OK);
    desc.name = "w";
    desc.gradient = gradient;
    desc.count = COUNT;
    REQUIRE(msdu_tensor_add(ctx, &desc, NULL) == MSDU_OK);
    return ctx;
}

/* Mean gradients, as they are in any job. */
static void train(void)
{
    static float gradient[COUNT];
    msdu_ctx *ctx = context(gradient, 30000);
    msdu_summary summary = MSDU_SUMMARY_INIT;
    REQUIRE(msdu_start(ctx) == MSDU_OK);
    REQUIRE(msdu_summary_get(ctx, &summary) == MSDU_OK);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < COUNT; i++) {
            gradient[i] = (float)(summary.rank + step + i % 7);
        }
        REQUIRE(msdu_tensor_ready(ctx, 0, MSDU_GRADIENT) == MSDU_OK);
        REQUIRE(msdu_tensor_wait(ctx, 0, MSDU_GRADIENT) == MSDU_OK);
        for (int i = 0; i < COUNT; i++) {
            double mean = (double)(summary.ranks - 1) / 2 + step + i % 7;
            REQUIRE(fabs((double)gradient[i] - mean) < 1e-5);
        }
        REQUIRE(msdu_step(ctx) == MSDU_OK);
    }
    REQUIRE(msdu_finish(ctx) == MSDU_OK);
    msdu_destroy(ctx);
}

static void given(void)
{
    int level = 0;
    int rank = 0;
    int sum = 0;
    REQUIRE(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level) == MPI_SUCCESS);
    REQUIRE(level == MPI_THREAD_MULTIPLE);
    train();
    train();
    /* what the trainer does itself is left alone */
    REQUIRE(MPI_Comm_rank(MPI_COMM_WORLD, &rank) == MPI_SUCCESS);
    REQUIRE(MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS);
    REQUIRE(MPI_Finalize() == MPI_SUCCESS);
}

static void ours(void)
{
    int is_init = 0;
    train();
    REQUIRE(MPI_Initialized(&is_init) == MPI_SUCCESS && is_init != 0);
}

static void single(void)
{
    static float gradient[COUNT];
    int level = MPI_THREAD_SINGLE;
    REQUIRE(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level) == MPI_SUCCESS);
    if (level != MPI_THREAD_MULTIPLE) { /* an MPI may give more than was asked for */
        msdu_ctx *ctx = context(gradient, 30000);
        REQUIRE(msdu_start(ctx) == MSDU_ERR_UNSUPPORTED);
        REQUIRE(strstr(msdu_last_error(), "MPI_THREAD_MULTIPLE") != NULL);
        msdu_destroy(ctx);
    }
    REQUIRE(MPI_Finalize() == MPI_SUCCESS);
}

/* Returns how many ranks there are. */
static int init(int *rank_out)
{
    int level = 0;
    int ranks = 0;
    REQUIRE(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level) == MPI_SUCCESS);
    (void)MPI_Comm_rank(MPI_COMM_WORLD, rank_out);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    return ranks;
}

static void late(void)
{
    static float gradient[COUNT];
    int rank = 0;
    int ranks = init(&rank);
    if (rank < ranks - 1) {
        msdu_ctx *ctx = context(gradient, 700);
        REQUIRE(msdu_start(ctx) == MSDU_ERR_TIMEOUT);
        REQUIRE(strstr(msdu_last_error(), "joined within 700 ms") != NULL);
        msdu_destroy(ctx);
    }
    REQUIRE(MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS);
    (void)fflush(NULL);
    /* a duplication is still under way in MPI, so MPI cannot be ended in peace */
    if (rank == 0) {
        (void)puts("late: passed");
        (void)fflush(stdout);
    }
    (void)MPI_Barrier(MPI_COMM_WORLD);
    (void)MPI_Abort(MPI_COMM_WORLD, 0);
}

static msdu_status take_step(msdu_ctx *ctx, float *gradient)
{
    msdu_status status = msdu_tensor_ready(ctx, 0, MSDU_GRADIENT);
    gradient[0] = 1;
    if (status == MSDU_OK) {
        status = msdu_tensor_wait(ctx, 0, MSDU_GRADIENT);
    }
    return status == MSDU_OK ? msdu_step(ctx) : status;
}

static msdu_ctx *host_context(int rank, float *parameter, float *gradient)
{
    msdu_config config = MSDU_CONFIG_INIT;
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    msdu_ctx *ctx = NULL;
    config.backend = "mpi";
    config.hosts = rank % 2 == 0 ? "even" : "odd";
    config.interval = "fixed";
    config.interval_steps = 2;
    config.warmup_steps = 1;
    config.overlap = "blocking";
    config.correct = "average";
    config.wire = "float32";
    REQUIRE(msdu_create(&config, &ctx) == MSDU_OK);
    desc.name = "w";
    desc.parameter = parameter;
    desc.gradient = gradient;
    desc.count = COUNT;
    REQUIRE(msdu_tensor_add(ctx, &desc, NULL) == MSDU_OK);
    REQUIRE(msdu_start(ctx) == MSDU_OK);
    return ctx;
}

/* Values of few bits, so means and sums are exact in any order. */
static void hosts(void)
{
    static float parameter[COUNT];
    static float gradient[COUNT];
    const int steps = 20;
    int rank = 0;
    int ranks = init(&rank);
    msdu_summary summary = MSDU_SUMMARY_INIT;
    msdu_ctx *ctx = host_context(rank, parameter, gradient);
    for (int step = 0; step < steps; step++) {
        REQUIRE(msdu_tensor_wait(ctx, 0, MSDU_PARAMETER) == MSDU_OK);
        for (int i = 0; i < COUNT; i++) {
            gradient[i] = (float)(rank * rank + step + i % 7);
        }
        REQUIRE(msdu_tensor_ready(ctx, 0, MSDU_GRADIENT) == MSDU_OK);
        REQUIRE(msdu_tensor_wait(ctx, 0, MSDU_GRADIENT) == MSDU_OK);
        for (int i = 0; i < COUNT; i++) {
            parameter[i] -= gradient[i];
        }
        REQUIRE(msdu_tensor_ready(ctx, 0, MSDU_PARAMETER) == MSDU_OK);
        REQUIRE(msdu_step(ctx) == MSDU_OK);
    }
    REQUIRE(msdu_summary_get(ctx, &summary) == MSDU_OK);
    REQUIRE(msdu_finish(ctx) == MSDU_OK);
    REQUIRE(summary.hosts == 2 && (int)summary.carriers == ranks / 2 &&
            summary.interval_steps == 2);
    float squares = 0;
    for (int i = 0; i < ranks; i++) {
        squares += (float)(i * i);
    }
    for (int i = 0; i < COUNT; i++) {
        float mean = squares / (float)ranks + (float)(i % 7);
        REQUIRE(parameter[i] == -(float)steps * mean - (float)(steps * (steps - 1)) / 2);
    }
    msdu_destroy(ctx);
    REQUIRE(MPI_Finalize() == MPI_SUCCESS);
}

/* The deadline is far beyond what a test may take: nobody may have to wait for it. */
static void early(void)
{
    static float gradient[COUNT];
    char name[32];
    int rank = 0;
    int ranks = init(&rank);
    msdu_ctx *ctx = context(gradient, 3600000);
    REQUIRE(msdu_start(ctx) == MSDU_OK);
    msdu_status status = MSDU_OK;
    for (int step = 0; status == MSDU_OK && step < (rank < ranks - 1 ? 2 * STEPS : STEPS); step++) {
        status = take_step(ctx, gradient);
    }
    if (status == MSDU_OK) {
        status = msdu_finish(ctx);
    }
    (void)snprintf(name, sizeof(name), "rank %d", ranks - 1);
    (void)fprintf(stderr, "rank %d: %s: %s\n", rank, msdu_status_name(status), msdu_last_error());
    REQUIRE(rank == ranks - 1
                ? status == MSDU_OK
                : status == MSDU_ERR_PEER_LOST && strstr(msdu_last_error(), name) != NULL);
    msdu_destroy(ctx);
    REQUIRE(MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS);
    if (rank == 0) { /* all ranks came as far as this */
        (void)puts("early: passed");
        (void)fflush(stdout);
    }
    (void)MPI_Finalize();
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } modes[] = {{"given", given}, {"ours", ours},   {"single", single},
                 {"late", late},   {"hosts", hosts}, {"early", early}};
    for (size_t i = 0; argc == 2 && i < sizeof(modes) / sizeof(modes[0]); i++) {
        if (strcmp(argv[1], modes[i].name) == 0) {
            modes[i].run();
            return 0;
        }
    }
    (void)fprintf(stderr, "usage: mpi_rank given|ours|single|late|hosts|early\n");
    return 2;
}
