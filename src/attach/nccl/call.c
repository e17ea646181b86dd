/* SPDX-License-Identifier: Apache-2.0 */
/* What kind of call NCCL was asked for: may its sum be a gradient's? */
#include "attach_nccl.h"

#define BFLOAT16 9 /* ncclBfloat16, which older headers have beside cuda_bf16.h only */

/* 0: no gradient's */
static int kind_of(const msdu__nccl_call *call)
{
    bool is_mean = call->op == (int)ncclAvg;
    int dtype = call->type == (int)ncclFloat32   ? MSDU_FLOAT32
                : call->type == (int)ncclFloat64 ? MSDU_FLOAT64
                : call->type == (int)ncclFloat16 ? MSDU_FLOAT16
                : call->type == BFLOAT16         ? MSDU_BFLOAT16
                                                 : -1;
    bool has_reason = dtype != MSDU_FLOAT64 || msdu__attach_engine_is_local();
    bool is_gradient = dtype >= 0 && has_reason && (call->op == (int)ncclSum || is_mean);
    return is_gradient ? 1 + dtype + (is_mean ? MSDU__KIND_MEANS : 0) : 0;
}

static bool is_half(int kind)
{
    return kind > 0 && msdu__kind_dtype(kind) >= MSDU_FLOAT16;
}

uint64_t msdu__nccl_bytes(const msdu__nccl_call *call)
{
    return call->count * (call->type == (int)ncclFloat64 ? 8U : is_half(kind_of(call)) ? 2U : 4U);
}

msdu__call msdu__nccl_describe(const msdu__track *track, const msdu__nccl_call *call,
                               int *reason_out)
{
    int kind = kind_of(call);
    msdu__call seen = {.count = call->count,
                       .kind = kind,
                       .is_sum = kind != 0,
                       .memory = (uint64_t)(uintptr_t)call->recv};
    *reason_out = -1;
    if (kind == 0) {
        seen.kind = MSDU__KIND_OTHER + 64 * call->type + call->op;
        *reason_out = MSDU__PASSED_TYPE;
    } else if (msdu__call_bytes(&seen) < msdu__attach_number("MSDU_ATTACH_MIN_BYTES", 1024)) {
        *reason_out = MSDU__PASSED_SMALL;
    } else if (!msdu__attach_engine_allows(&track->place, &seen, MSDU__ANYWHERE)) {
        *reason_out = MSDU__PASSED_DENIED;
    } else if (is_half(kind) && !msdu__attach_engine_takes_half()) {
        *reason_out = MSDU__PASSED_HALF;
    }
    seen.is_candidate = *reason_out < 0;
    return seen;
}

/* An error says so of stream 0. */
bool msdu__nccl_is_captured(const msdu__nccl_call *call)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaStreamIsCapturing((cudaStream_t)call->stream, &status);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
    }
    return error != cudaSuccess || status != cudaStreamCaptureStatusNone;
}
