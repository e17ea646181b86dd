/* SPDX-License-Identifier: Apache-2.0 */
/* The binary interface, pinned: sizes, offsets and values never change within a release series. */
#include <msdu/backend.h>
#include <msdu/stages.h>

#include <check.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "suite.h"

typedef struct pin {
    const char *name;
    long long actual;
    long long pinned;
} pin;

/* What stands in the braces of one row. */
#define SIZE(type, bytes)       "sizeof " #type, sizeof(type), (bytes)
#define FIELD(type, field, at)  #type "." #field, offsetof(type, field), (at)
#define VALUE(constant, number) #constant, (constant), (number)

/* Append new rows; a row that has to be edited is a break of the interface. */
static const pin sizes[] = {
    {SIZE(msdu_config, 560)},       {SIZE(msdu_tensor_desc, 56)},
    {SIZE(msdu_summary, 368)},      {SIZE(msdu_setting_info, 56)},
    {SIZE(msdu_host, 136)},         {SIZE(msdu_op, 72)},
    {SIZE(msdu_backend, 104)},      {SIZE(msdu_local_drift, 64)},
    {SIZE(msdu_resolved, 1032)},    {SIZE(msdu_device, 88)},
    {SIZE(msdu_kernels, 152)},      {SIZE(msdu_launch, 32)},
    {SIZE(msdu_arrays, 40)},        {SIZE(msdu_rules, 152)},
    {SIZE(msdu_recursion, 72)},     {SIZE(msdu_exchange, 24)},
    {SIZE(msdu_sums, 24)},          {SIZE(msdu_store, 40)},
    {SIZE(msdu_work, 64)},          {SIZE(msdu_stages_question, 152)},
    {SIZE(msdu_stages_action, 32)}, {SIZE(msdu_stages_stage, 40)},
    {SIZE(msdu_stages_torch, 32)},  {SIZE(msdu_stages, 120)},
};

static const pin config_fields[] = {
    {FIELD(msdu_config, size, 0)},
    {FIELD(msdu_config, config_file, 8)},
    {FIELD(msdu_config, log, 16)},
    {FIELD(msdu_config, log_user, 24)},
    {FIELD(msdu_config, log_level, 32)},
    {FIELD(msdu_config, ranks, 36)},
    {FIELD(msdu_config, rank, 40)},
    {FIELD(msdu_config, backend, 48)},
    {FIELD(msdu_config, job, 56)},
    {FIELD(msdu_config, secret, 64)},
    {FIELD(msdu_config, rendezvous, 72)},
    {FIELD(msdu_config, interface, 80)},
    {FIELD(msdu_config, tls_key, 88)},
    {FIELD(msdu_config, tls_cert, 96)},
    {FIELD(msdu_config, tls_ca, 104)},
    {FIELD(msdu_config, deadline_ms, 112)},
    {FIELD(msdu_config, domain, 120)},
    {FIELD(msdu_config, overlap, 128)},
    {FIELD(msdu_config, commit, 136)},
    {FIELD(msdu_config, reduce, 144)},
    {FIELD(msdu_config, broadcast, 152)},
    {FIELD(msdu_config, check_finite, 160)},
    {FIELD(msdu_config, state, 168)},
    {FIELD(msdu_config, delay_steps, 176)},
    {FIELD(msdu_config, fragments, 184)},
    {FIELD(msdu_config, interval, 192)},
    {FIELD(msdu_config, interval_steps, 200)},
    {FIELD(msdu_config, interval_max, 208)},
    {FIELD(msdu_config, warmup_steps, 216)},
    {FIELD(msdu_config, total_steps, 224)},
    {FIELD(msdu_config, switch_step, 232)},
    {FIELD(msdu_config, target_overhead, 240)},
    {FIELD(msdu_config, prefer, 248)},
    {FIELD(msdu_config, drift_limit, 256)},
    {FIELD(msdu_config, drift_exponent, 264)},
    {FIELD(msdu_config, qsr_alpha, 272)},
    {FIELD(msdu_config, plateau_patience, 280)},
    {FIELD(msdu_config, plateau_threshold, 288)},
    {FIELD(msdu_config, correct, 296)},
    {FIELD(msdu_config, elastic_alpha, 304)},
    {FIELD(msdu_config, outer_lr, 312)},
    {FIELD(msdu_config, outer_momentum, 320)},
    {FIELD(msdu_config, outer_kind, 328)},
    {FIELD(msdu_config, delayed_keep, 336)},
    {FIELD(msdu_config, clip_ratio, 344)},
    {FIELD(msdu_config, optimizer, 352)},
    {FIELD(msdu_config, lr, 360)},
    {FIELD(msdu_config, momentum, 368)},
    {FIELD(msdu_config, dampening, 376)},
    {FIELD(msdu_config, weight_decay, 384)},
    {FIELD(msdu_config, nesterov, 392)},
    {FIELD(msdu_config, slice_bytes, 400)},
    {FIELD(msdu_config, fuse_bytes, 408)},
    {FIELD(msdu_config, window, 416)},
    {FIELD(msdu_config, lanes, 424)},
    {FIELD(msdu_config, wire, 432)},
    {FIELD(msdu_config, wire_block, 440)},
    {FIELD(msdu_config, trace_file, 448)},
    {FIELD(msdu_config, metrics_file, 456)},
    {FIELD(msdu_config, metrics_period_ms, 464)},
    {FIELD(msdu_config, settings, 472)},
    {FIELD(msdu_config, store, 480)},
    {FIELD(msdu_config, uneven, 488)},
    {FIELD(msdu_config, clock_period, 496)},
    {FIELD(msdu_config, clock_grace, 504)},
    {FIELD(msdu_config, clock_bound, 512)},
    {FIELD(msdu_config, clock_scale, 520)},
    {FIELD(msdu_config, hosts, 528)},
    {FIELD(msdu_config, ranks_least, 536)},
    {FIELD(msdu_config, ranks_most, 544)},
    {FIELD(msdu_config, ranks_wait_ms, 552)},
};

static const pin tensor_desc_fields[] = {
    {FIELD(msdu_tensor_desc, size, 0)},       {FIELD(msdu_tensor_desc, name, 8)},
    {FIELD(msdu_tensor_desc, parameter, 16)}, {FIELD(msdu_tensor_desc, gradient, 24)},
    {FIELD(msdu_tensor_desc, count, 32)},     {FIELD(msdu_tensor_desc, dtype, 40)},
    {FIELD(msdu_tensor_desc, role, 44)},      {FIELD(msdu_tensor_desc, priority, 48)},
    {FIELD(msdu_tensor_desc, place, 52)},
};

static const pin summary_fields[] = {
    {FIELD(msdu_summary, size, 0)},
    {FIELD(msdu_summary, steps, 8)},
    {FIELD(msdu_summary, rounds, 16)},
    {FIELD(msdu_summary, bytes_sent, 24)},
    {FIELD(msdu_summary, bytes_plain, 32)},
    {FIELD(msdu_summary, wait_ns, 40)},
    {FIELD(msdu_summary, elapsed_ns, 48)},
    {FIELD(msdu_summary, plan_renewals, 56)},
    {FIELD(msdu_summary, interval_steps, 64)},
    {FIELD(msdu_summary, drift, 72)},
    {FIELD(msdu_summary, divergence, 80)},
    {FIELD(msdu_summary, rank, 88)},
    {FIELD(msdu_summary, ranks, 92)},
    {FIELD(msdu_summary, wire, 96)},
    {FIELD(msdu_summary, domain, 104)},
    {FIELD(msdu_summary, interval, 112)},
    {FIELD(msdu_summary, reason, 120)},
    {FIELD(msdu_summary, cpu_ns, 248)},
    {FIELD(msdu_summary, slice_bytes, 256)},
    {FIELD(msdu_summary, window, 264)},
    {FIELD(msdu_summary, slice_cuts, 268)},
    {FIELD(msdu_summary, lanes, 272)},
    {FIELD(msdu_summary, missed, 280)},
    {FIELD(msdu_summary, network_ns, 288)},
    {FIELD(msdu_summary, straggler_ns, 296)},
    {FIELD(msdu_summary, common_steps, 304)},
    {FIELD(msdu_summary, state, 312)},
    {FIELD(msdu_summary, bytes_inside, 320)},
    {FIELD(msdu_summary, hosts, 328)},
    {FIELD(msdu_summary, carriers, 332)},
    {FIELD(msdu_summary, gradient_ranks, 336)},
    {FIELD(msdu_summary, epoch, 344)},
    {FIELD(msdu_summary, ranks_lost, 352)},
    {FIELD(msdu_summary, ranks_joined, 356)},
    {FIELD(msdu_summary, has_given, 360)},
    {FIELD(msdu_summary, was_given, 364)},
};

static const pin setting_info_fields[] = {
    {FIELD(msdu_setting_info, size, 0)},          {FIELD(msdu_setting_info, name, 8)},
    {FIELD(msdu_setting_info, environment, 16)},  {FIELD(msdu_setting_info, type, 24)},
    {FIELD(msdu_setting_info, default_text, 32)}, {FIELD(msdu_setting_info, range, 40)},
    {FIELD(msdu_setting_info, help, 48)},
};

static const pin resolved_fields[] = {
    {FIELD(msdu_resolved, size, 0)},
    {FIELD(msdu_resolved, text, 8)},
    {FIELD(msdu_resolved, origin, 520)},
};

static const pin host_fields[] = {
    {FIELD(msdu_host, size, 0)},         {FIELD(msdu_host, rank, 8)},
    {FIELD(msdu_host, ranks, 12)},       {FIELD(msdu_host, job, 16)},
    {FIELD(msdu_host, secret, 24)},      {FIELD(msdu_host, rendezvous, 32)},
    {FIELD(msdu_host, interface, 40)},   {FIELD(msdu_host, tls_key, 48)},
    {FIELD(msdu_host, tls_cert, 56)},    {FIELD(msdu_host, tls_ca, 64)},
    {FIELD(msdu_host, deadline_ns, 72)}, {FIELD(msdu_host, lanes, 80)},
    {FIELD(msdu_host, requests, 84)},    {FIELD(msdu_host, user, 88)},
    {FIELD(msdu_host, notify, 96)},      {FIELD(msdu_host, log, 104)},
    {FIELD(msdu_host, fail, 112)},       {FIELD(msdu_host, store, 120)},
    {FIELD(msdu_store, size, 0)},        {FIELD(msdu_store, user, 8)},
    {FIELD(msdu_store, epoch, 16)},      {FIELD(msdu_store, set, 24)},
    {FIELD(msdu_store, get, 32)},
};

static const pin op_fields[] = {
    {FIELD(msdu_op, size, 0)},    {FIELD(msdu_op, kind, 8)},   {FIELD(msdu_op, dtype, 12)},
    {FIELD(msdu_op, lane, 16)},   {FIELD(msdu_op, place, 20)}, {FIELD(msdu_op, sequence, 24)},
    {FIELD(msdu_op, count, 32)},  {FIELD(msdu_op, send, 40)},  {FIELD(msdu_op, recv, 48)},
    {FIELD(msdu_op, shares, 56)}, {FIELD(msdu_op, flags, 64)}, {FIELD(msdu_op, group, 68)},
};

static const pin backend_fields[] = {
    {FIELD(msdu_backend, size, 0)},        {FIELD(msdu_backend, name, 8)},
    {FIELD(msdu_backend, version, 16)},    {FIELD(msdu_backend, caps, 24)},
    {FIELD(msdu_backend, open, 32)},       {FIELD(msdu_backend, close, 40)},
    {FIELD(msdu_backend, start, 48)},      {FIELD(msdu_backend, test, 56)},
    {FIELD(msdu_backend, wait, 64)},       {FIELD(msdu_backend, abort, 72)},
    {FIELD(msdu_backend, device, 80)},     {FIELD(msdu_backend, split, 88)},
    {FIELD(msdu_backend, membership, 96)},
};

static const pin stages_fields[] = {
    {FIELD(msdu_stages_question, size, 0)},
    {FIELD(msdu_stages_question, layers, 8)},
    {FIELD(msdu_stages_question, devices, 12)},
    {FIELD(msdu_stages_question, micro_batches, 16)},
    {FIELD(msdu_stages_question, may, 20)},
    {FIELD(msdu_stages_question, batch, 24)},
    {FIELD(msdu_stages_question, samples, 28)},
    {FIELD(msdu_stages_question, ahead, 32)},
    {FIELD(msdu_stages_question, forward_ns, 40)},
    {FIELD(msdu_stages_question, backward_ns, 48)},
    {FIELD(msdu_stages_question, weight_ns, 56)},
    {FIELD(msdu_stages_question, fixed_forward_ns, 64)},
    {FIELD(msdu_stages_question, fixed_backward_ns, 72)},
    {FIELD(msdu_stages_question, output_bytes, 80)},
    {FIELD(msdu_stages_question, kept_bytes, 88)},
    {FIELD(msdu_stages_question, state_bytes, 96)},
    {FIELD(msdu_stages_question, memory_bytes, 104)},
    {FIELD(msdu_stages_question, card_rate, 112)},
    {FIELD(msdu_stages_question, link_rate, 120)},
    {FIELD(msdu_stages_question, latency_ns, 128)},
    {FIELD(msdu_stages_question, layer_names, 136)},
    {FIELD(msdu_stages_question, device_names, 144)},
    {FIELD(msdu_stages_action, stage, 0)},
    {FIELD(msdu_stages_action, micro_batch, 4)},
    {FIELD(msdu_stages_action, kind, 8)},
    {FIELD(msdu_stages_action, begin_ns, 16)},
    {FIELD(msdu_stages_action, end_ns, 24)},
    {FIELD(msdu_stages_stage, device, 0)},
    {FIELD(msdu_stages_stage, rank, 4)},
    {FIELD(msdu_stages_stage, first, 8)},
    {FIELD(msdu_stages_stage, end, 12)},
    {FIELD(msdu_stages_stage, holds, 16)},
    {FIELD(msdu_stages_stage, busy_ns, 24)},
    {FIELD(msdu_stages_stage, memory_bytes, 32)},
    {FIELD(msdu_stages, size, 0)},
    {FIELD(msdu_stages, stage_count, 8)},
    {FIELD(msdu_stages, rank_count, 12)},
    {FIELD(msdu_stages, micro_batches, 16)},
    {FIELD(msdu_stages, stages, 24)},
    {FIELD(msdu_stages, actions, 32)},
    {FIELD(msdu_stages, rank_begin, 40)},
    {FIELD(msdu_stages, lowered, 48)},
    {FIELD(msdu_stages, lowered_begin, 56)},
    {FIELD(msdu_stages, step_ns, 64)},
    {FIELD(msdu_stages, bound_ns, 72)},
    {FIELD(msdu_stages, beta_ns, 80)},
    {FIELD(msdu_stages, torch, 88)},
};

static const pin values[] = {
    {VALUE(MSDU_OK, 0)},
    {VALUE(MSDU_IN_PROGRESS, 1)},
    {VALUE(MSDU_REGROUPED, 2)},
    {VALUE(MSDU_ERR_INVALID, -1)},
    {VALUE(MSDU_ERR_UNSUPPORTED, -2)},
    {VALUE(MSDU_ERR_NOT_FOUND, -3)},
    {VALUE(MSDU_ERR_NO_MEMORY, -4)},
    {VALUE(MSDU_ERR_STATE, -5)},
    {VALUE(MSDU_ERR_MISMATCH, -6)},
    {VALUE(MSDU_ERR_TIMEOUT, -7)},
    {VALUE(MSDU_ERR_PEER_LOST, -8)},
    {VALUE(MSDU_ERR_NOT_FINITE, -9)},
    {VALUE(MSDU_ERR_IO, -10)},
    {VALUE(MSDU_ERR_BACKEND, -11)},
    {VALUE(MSDU_ERR_DENIED, -12)},
    {VALUE(MSDU_FLOAT32, 0)},
    {VALUE(MSDU_FLOAT64, 1)},
    {VALUE(MSDU_FLOAT16, 2)},
    {VALUE(MSDU_BFLOAT16, 3)},
    {VALUE(MSDU_ROLE_MODEL, 0)},
    {VALUE(MSDU_ROLE_STATE, 1)},
    {VALUE(MSDU_ROLE_BUFFER, 2)},
    {VALUE(MSDU_GRADIENT, 1)},
    {VALUE(MSDU_PARAMETER, 2)},
    {VALUE(MSDU_LOG_DEFAULT, 0)},
    {VALUE(MSDU_LOG_ERROR, 1)},
    {VALUE(MSDU_LOG_WARN, 2)},
    {VALUE(MSDU_LOG_INFO, 3)},
    {VALUE(MSDU_LOG_DEBUG, 4)},
    {VALUE(MSDU_OP_ALLREDUCE, 0)},
    {VALUE(MSDU_OP_ALLTOALL, 1)},
    {VALUE(MSDU_OP_ALLGATHER, 2)},
    {VALUE(MSDU_OP_BROADCAST, 3)},
    {VALUE(MSDU_ALL_TENSORS, 4294967295)},
    {VALUE(MSDU_CAP_NOTIFY, 1)},
    {VALUE(MSDU_CAP_RANK_ORDER, 4)},
    {VALUE(MSDU_CAP_SINGLE_ORDER, 2)},
    {VALUE(MSDU_STAGES_SPLIT, 1)},
    {VALUE(MSDU_STAGES_TWO, 2)},
    {VALUE(MSDU_STAGES_FORWARD, 0)},
    {VALUE(MSDU_STAGES_BACKWARD, 1)},
    {VALUE(MSDU_STAGES_INPUT, 2)},
    {VALUE(MSDU_STAGES_WEIGHT, 3)},
    {VALUE(MSDU_STAGES_SEND_FORWARD, 4)},
    {VALUE(MSDU_STAGES_RECV_FORWARD, 5)},
    {VALUE(MSDU_STAGES_SEND_BACKWARD, 6)},
    {VALUE(MSDU_STAGES_RECV_BACKWARD, 7)},
};

static void check_pins(const pin *pins, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        ck_assert_msg(pins[i].actual == pins[i].pinned, "%s is %lld, pinned at %lld", pins[i].name,
                      pins[i].actual, pins[i].pinned);
    }
}

#define CHECK_PINS(pins) check_pins(pins, sizeof(pins) / sizeof(pins[0]))

START_TEST(struct_sizes_are_pinned)
{
    CHECK_PINS(sizes);
}
END_TEST

START_TEST(field_offsets_are_pinned)
{
    CHECK_PINS(config_fields);
    CHECK_PINS(tensor_desc_fields);
    CHECK_PINS(summary_fields);
    CHECK_PINS(setting_info_fields);
    CHECK_PINS(resolved_fields);
    CHECK_PINS(host_fields);
    CHECK_PINS(op_fields);
    CHECK_PINS(backend_fields);
    CHECK_PINS(stages_fields);
}
END_TEST

START_TEST(constants_are_pinned)
{
    CHECK_PINS(values);
    ck_assert_str_eq(MSDU_BACKEND_SYMBOL, "msdu_backend_v2");
}
END_TEST

START_TEST(every_status_has_a_row)
{
    size_t statuses = 0;
#define COUNT_STATUS(name, value, text) statuses++;
    MSDU_STATUS_MAP(COUNT_STATUS)
#undef COUNT_STATUS
    size_t rows = 0;
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        const char *name = values[i].name;
        bool is_status = strncmp(name, "MSDU_ERR_", 9) == 0 || strcmp(name, "MSDU_OK") == 0 ||
                         strcmp(name, "MSDU_IN_PROGRESS") == 0 ||
                         strcmp(name, "MSDU_REGROUPED") == 0;
        rows += is_status ? 1 : 0;
    }
    ck_assert_uint_eq(rows, statuses);
}
END_TEST

START_TEST(init_macros_set_the_size_and_nothing_else)
{
    msdu_config config = MSDU_CONFIG_INIT;
    msdu_config zero = {0};
    ck_assert_uint_eq(config.size, sizeof(config));
    config.size = 0;
    ck_assert_mem_eq(&config, &zero, sizeof(config));
    msdu_tensor_desc tensor = MSDU_TENSOR_INIT;
    ck_assert_uint_eq(tensor.size, sizeof(tensor));
    msdu_summary summary = MSDU_SUMMARY_INIT;
    ck_assert_uint_eq(summary.size, sizeof(summary));
    msdu_setting_info info = MSDU_SETTING_INFO_INIT;
    ck_assert_uint_eq(info.size, sizeof(info));
    msdu_resolved resolved = MSDU_RESOLVED_INIT;
    ck_assert_uint_eq(resolved.size, sizeof(resolved));
    msdu_work work = MSDU_WORK_INIT;
    ck_assert_uint_eq(work.size, sizeof(work));
    msdu_store store = MSDU_STORE_INIT;
    ck_assert_uint_eq(store.size, sizeof(store));
    msdu_stages_question question = MSDU_STAGES_QUESTION_INIT;
    ck_assert_uint_eq(question.size, sizeof(question));
    msdu_stages plan = MSDU_STAGES_INIT;
    ck_assert_uint_eq(plan.size, sizeof(plan));
}
END_TEST

START_TEST(optional_entries_are_found_by_size)
{
    msdu_backend backend = {.size = offsetof(msdu_backend, wait)};
    ck_assert(!MSDU_BACKEND_HAS(&backend, wait));
    ck_assert(!MSDU_BACKEND_HAS(&backend, open));
    backend.size = sizeof(backend);
    ck_assert(!MSDU_BACKEND_HAS(&backend, abort));
}
END_TEST

int main(void)
{
    if (sizeof(void *) != 8) {
        printf("skipped: the pins are those of 64-bit machines\n");
        return 77;
    }
    Suite *suite = suite_create("abi");
    TCase *cases = suite_case(suite, "abi", 0, NULL, NULL);
    tcase_add_test(cases, struct_sizes_are_pinned);
    tcase_add_test(cases, field_offsets_are_pinned);
    tcase_add_test(cases, constants_are_pinned);
    tcase_add_test(cases, every_status_has_a_row);
    tcase_add_test(cases, init_macros_set_the_size_and_nothing_else);
    tcase_add_test(cases, optional_entries_are_found_by_size);
    return suite_run(suite);
}
