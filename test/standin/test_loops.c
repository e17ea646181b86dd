/* SPDX-License-Identifier: Apache-2.0 */
/* The device's loops of the wire formats, over the stand-in: the bytes of the host's. */
#include <check.h>
#include <math.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "nccl_loops.h"
#include "random.h"
#include "suite.h"
#include "wire/wire.h"

#define COUNT 5000 /* not a multiple of BLOCK */
#define BLOCK 256

static float value[COUNT];

static void setup(void)
{
    uint64_t state = 0x9e3779b97f4a7c15U;
    for (int i = 0; i < COUNT; i++) {
        value[i] = (float)random_gaussian(&state);
    }
}

/* As nccl_device.c does it, on a stream that is there for one kernel. */
msdu_status msdu__nccl_run(const msdu_launch *at, msdu__nccl_give give, void *args)
{
    void *scratch = NULL;
    cudaStream_t stream = NULL;
    (void)at;
    ck_assert_int_eq(cudaMalloc(&scratch, MSDU__LOOPS_SCRATCH), cudaSuccess);
    ck_assert_int_eq(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
    ck_assert_int_eq(give(args, scratch, stream), cudaSuccess);
    ck_assert_int_eq(cudaStreamSynchronize(stream), cudaSuccess);
    ck_assert_int_eq(cudaStreamDestroy(stream), cudaSuccess);
    ck_assert_int_eq(cudaFree(scratch), cudaSuccess);
    return MSDU_OK;
}

/* Int2's levels are fitted from sums in another order; whole numbers make them exact. */
START_TEST(codes_are_the_hosts)
{
    const int format = _i;
    const msdu__wire *wire = msdu__wire_at(format);
    const uint64_t bytes = msdu__wire_bytes(wire, COUNT, BLOCK);
    static unsigned char wanted[4 * COUNT];
    static unsigned char got[4 * COUNT];
    static float left[2][COUNT];
    memset(left, 0, sizeof(left));
    for (int i = 0; i < COUNT && format == MSDU__WIRE_INT2; i++) {
        value[i] = (float)(int)(8.0F * value[i]);
    }
    float *residual = wire->has_feedback ? left[1] : NULL;
    for (int round = 0; round < 3; round++) { /* from the second on something is held back */
        value[700] = round == 1 ? INFINITY : 1.0F;
        value[2000] = round == 1 ? NAN : 1.0F;
        (void)msdu__wire_encode(wire, value, wire->has_feedback ? left[0] : NULL, COUNT, BLOCK,
                                wanted);
        const msdu_launch at = {.count = COUNT};
        const msdu_exchange exchange = {.format = format, .block = BLOCK, .ranks = 1, .factor = 1};
        ck_assert_int_eq(msdu__nccl_kernels.encode(&at, &exchange, value, residual, got, NULL),
                         MSDU_OK);
        ck_assert_mem_eq(got, wanted, bytes);
        ck_assert_mem_eq(left[0], left[1], sizeof(left[0]));
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_loops");
    TCase *cases = suite_case(suite, "wire", 60, setup, NULL);
    tcase_add_loop_test(cases, codes_are_the_hosts, 0, MSDU__WIRE_COUNT);
    return suite_run(suite);
}
