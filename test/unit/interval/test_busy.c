/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A busy machine is no slow link: the default policy on ranks that wait for cores, for threads that
 * wake and for codes. Steps of 10 ms, if not said; what differs from round to round is the machine.
 */
#include "interval/waiting.h"
#include "interval_fixture.h"
#include "suite.h"

typedef struct machine {
    msdu__interval_args args;
    msdu__interval_state state;
    double step_ms;
    double link_ms;    /* of float32, while the machine is quiet */
    double busy_ms;    /* more, in link and wait, in all rounds but one of `quiet_every` */
    double latency_ms; /* of a message */
    double queued_ms;  /* a thread waited for a core, in rounds that are not quiet */
    int quiet_every;   /* 0: never quiet */
    int stopped_every; /* in one round of these the time stamps are of a stopped thread; 0: none */
    double waits_ms;   /* in every round, whatever its format; negative: what the link takes */
    int round;
    uint64_t first_step;
    msdu__decision now;
    int left;         /* first round that decided for anything but float32 at h = 1; 0: none */
    int back;         /* first after it that did for float32 again */
    int left_again;   /* and that left once more */
    int local;        /* first round that decided for local steps; 0: none */
    const char *seen; /* "no faster" once a reason said so */
} machine;

static machine machine_new(double link_ms, double busy_ms)
{
    return (machine){.args = default_args(),
                     .step_ms = 10,
                     .link_ms = link_ms,
                     .busy_ms = busy_ms,
                     .quiet_every = 8,
                     .waits_ms = -1,
                     .first_step = 100,
                     .now = {.interval = 1, .wire = FLOAT32}};
}

static msdu__round_stats round_of(const machine *m)
{
    msdu__round_stats stats = default_stats(0);
    bool is_quiet = m->quiet_every > 0 && m->round % m->quiet_every == 0;
    bool is_stopped = m->stopped_every > 0 && m->round % m->stopped_every == 0;
    double link = m->link_ms * m->args.wires[m->now.wire].bits / 32 + (is_quiet ? 0 : m->busy_ms);
    stats.step = (uint64_t)m->round + m->first_step;
    stats.step_ns = (uint64_t)(1e6 * m->step_ms);
    stats.wire = stats.link_wire = m->now.wire;
    stats.link_ns = (uint64_t)(is_stopped ? 2000 : 1e6 * link);
    stats.latency_ns = (uint64_t)(1e6 * m->latency_ms);
    stats.queued_ns = is_quiet ? 0 : (uint64_t)(1e6 * m->queued_ms);
    stats.wait_ns = (uint64_t)(1e6 * (m->waits_ms >= 0 ? m->waits_ms : link));
    return stats;
}

static void note(machine *m, const msdu__decision *d)
{
    bool is_exact = d->wire == FLOAT32 && d->interval == 1;
    m->local = m->local == 0 && d->interval > 1 ? m->round : m->local;
    m->left = m->left == 0 && !is_exact ? m->round : m->left;
    m->back = m->left > 0 && m->back == 0 && is_exact ? m->round : m->back;
    m->left_again = m->back > 0 && m->left_again == 0 && !is_exact ? m->round : m->left_again;
    m->seen = strstr(d->reason, "no faster") != NULL ? "no faster" : m->seen;
}

static void machine_run(machine *m, int rounds)
{
    for (int end = m->round + rounds; m->round < end; m->round++) {
        msdu__round_stats stats = round_of(m);
        msdu__decision d = decide("divergence", &m->args, &stats, &m->state);
        note(m, &d);
        m->now = (msdu__decision){.interval = 1, .wire = d.wire};
    }
}

/* What is left for another, and in which round: in none if `most` is 0. */
static const struct {
    const char *what;
    double link_ms, busy_ms;
    int quiet_every, stopped_every;
    uint64_t first_step;
    double local_ns;
    int rounds, most;
} leaves[] = {
    {"waits of a busy machine are not the network's", 0.2, 8, 8, 0, 100, 0, 400, 0},
    {"a slow link is one on a busy machine too", 40, 8, 8, 0, 100, 0, 60, 20},
    {"a stopped thread does not make a slow link fast", 40, 2, 0, 20, 100, 0, 60, 40},
    {"the first rounds of a busy host sound no alarm", 0.2, 60, 4, 0, 1, 1e6, 200, 0},
};

START_TEST(slow_links_are_left_and_busy_machines_are_not)
{
    machine m = machine_new(leaves[_i].link_ms, leaves[_i].busy_ms);
    m.quiet_every = leaves[_i].quiet_every;
    m.stopped_every = leaves[_i].stopped_every;
    m.first_step = leaves[_i].first_step;
    m.args.local_ns = leaves[_i].local_ns;
    machine_run(&m, leaves[_i].rounds);
    ck_assert_msg((m.left > 0) == (leaves[_i].most > 0) && m.left <= leaves[_i].most, "%s: %d",
                  leaves[_i].what, m.left);
}
END_TEST

START_TEST(a_link_that_becomes_slow_is_seen)
{
    machine m = machine_new(0.2, 8);
    machine_run(&m, 100);
    m.link_ms = 40;
    machine_run(&m, 300);
    ck_assert_int_gt(m.left, 100);
}
END_TEST

/* A neighbour's burst, longer than float32 is kept against a wish to leave it: most of what such
 * rounds take, a thread waits for a core. In the first of them, and later. */
START_TEST(a_burst_is_no_slow_link)
{
    for (int before = 0; before <= 300; before += 300) {
        machine m = machine_new(0.02, 0);
        m.step_ms = 2;
        machine_run(&m, before);
        m.busy_ms = 1.5;
        m.queued_ms = 1.5 + (double)before / 100; /* and waits in other places */
        m.quiet_every = 0;
        machine_run(&m, 100);
        ck_assert_int_eq(m.left, 0);
        m.queued_ms = 0.4; /* that alone was not it */
        machine_run(&m, 100);
        ck_assert_int_gt(m.left, before + 100);
    }
}
END_TEST

/* Never quiet, and every exchange is a few wakes of threads; on one host that is nobody's link. */
START_TEST(what_every_exchange_costs_on_one_host_is_no_reason)
{
    for (int is_local = 0; is_local <= 1; is_local++) {
        machine m = machine_new(1, 3);
        m.quiet_every = 0;
        m.args.local_ns = is_local ? 1e6 : 0;
        m.args.local_byte_ns = is_local ? 3.2 : 0;
        machine_run(&m, 100);
        ck_assert(is_local ? m.left == 0 : m.left > 0);
        m.link_ms = 60; /* a shaped link, on one host as well */
        machine_run(&m, 300);
        ck_assert_int_gt(m.left, 0);
    }
}
END_TEST

/* --- what was tried --- */

START_TEST(a_format_that_is_no_faster_is_given_up_and_rests)
{
    machine m = machine_new(8, 0);
    m.waits_ms = 2; /* for something else than the link: no more than ALARM of a step */
    m.args.can_go_local = false;
    machine_run(&m, 300);
    ck_assert_int_gt(m.left, 0);
    ck_assert_int_gt(m.back, m.left + 20);
    ck_assert_int_lt(m.back, m.left + 60);
    ck_assert_int_eq(m.left_again, 0);
    ck_assert_ptr_nonnull(m.seen);
    machine_run(&m, 300);
    ck_assert_int_gt(m.left_again, m.back + 200); /* and is tried again in the end */
}
END_TEST

START_TEST(a_format_that_is_faster_stays)
{
    machine m = machine_new(8, 0);
    m.args.can_go_local = false;
    machine_run(&m, 300);
    ck_assert_int_gt(m.left, 0);
    ck_assert_int_eq(m.back, 0);
}
END_TEST

/* --- local steps, from which there is no way back --- */

/* Waits of a machine that is never quiet, and of links whose every message or every byte is slow;
 * with a target that four bits do not meet either. */
static const struct {
    const char *what;
    double link_ms, busy_ms, queued_ms, latency_ms;
    int most;
} locals[] = {
    {"a busy machine, whatever the format", 0.2, 4, 0, 0, 0},
    {"a very busy one", 0.2, 30, 10, 0.02, 0},
    {"a slow link", 400, 0, 0, 0, 24},
    {"a slow link of a busy machine", 400, 8, 0, 0, 24},
    {"a far one", 0.2, 8, 0, 8, 24},
};

START_TEST(local_steps_are_for_the_network_only)
{
    machine m = machine_new(locals[_i].link_ms, locals[_i].busy_ms);
    m.quiet_every = 0;
    m.latency_ms = locals[_i].latency_ms;
    m.queued_ms = locals[_i].queued_ms;
    m.args.target_overhead = 0.005;
    machine_run(&m, 1200);
    ck_assert_msg((m.local > 0) == (locals[_i].most > 0) && m.local <= locals[_i].most, "%s: %d",
                  locals[_i].what, m.local);
}
END_TEST

/* --- codes --- */

START_TEST(codes_are_made_under_transfers)
{
    msdu__interval_args args = default_args();
    msdu__round_stats stats = default_stats(8);
    stats.link_wire = FLOAT32;
    double plain = msdu__interval_sync_ns(&args, &stats, INT4);
    for (int code_ns = 0; code_ns <= 4; code_ns += 2) {
        double code = code_ns * (double)stats.elements;
        args.wires[INT4].code_ns = code_ns;
        double coded = msdu__interval_sync_ns(&args, &stats, INT4);
        ck_assert_double_eq_tol(coded, fmax(plain, code), 1);
        ck_assert(code_ns < 4 || coded > 2 * plain);
    }
}
END_TEST

/* 4 million bytes at 10 Gbit/s take 3.2 ms: codes that take longer hide nothing. */
START_TEST(a_format_that_codes_longer_than_it_saves_is_not_taken)
{
    for (int is_coded = 0; is_coded <= 1; is_coded++) {
        machine m = machine_new(6, 0);
        for (int wire = BFLOAT16; wire <= INT2; wire++) {
            m.args.wires[wire].code_ns = is_coded ? 8 : 0;
        }
        m.args.can_go_local = false;
        machine_run(&m, 100);
        ck_assert(is_coded ? m.left == 0 : m.left > 0);
    }
}
END_TEST

/* Of a link so fast that processors are its limit: no format is faster, fewer exchanges are. On one
 * host it may be a neighbour; and what a thread waited for a core is none of it. */
START_TEST(an_alarming_wait_between_hosts_is_enough)
{
    for (int which = 0; which < 3; which++) {
        machine m = machine_new(0.2, 60);
        m.quiet_every = 0;
        m.args.local_ns = which == 1 ? 1e6 : 0;
        m.queued_ms = which == 2 ? 50 : 0;
        machine_run(&m, 60);
        ck_assert_msg((m.local > 0) == (which == 0), "%d: %d", which, m.local);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("busy");
    TCase *tcase = suite_case(suite, "busy", 0, NULL, NULL);
    suite_table(tcase, slow_links_are_left_and_busy_machines_are_not, leaves);
    tcase_add_test(tcase, a_link_that_becomes_slow_is_seen);
    tcase_add_test(tcase, a_burst_is_no_slow_link);
    tcase_add_test(tcase, what_every_exchange_costs_on_one_host_is_no_reason);
    tcase_add_test(tcase, a_format_that_is_no_faster_is_given_up_and_rests);
    tcase_add_test(tcase, a_format_that_is_faster_stays);
    suite_table(tcase, local_steps_are_for_the_network_only, locals);
    tcase_add_test(tcase, codes_are_made_under_transfers);
    tcase_add_test(tcase, a_format_that_codes_longer_than_it_saves_is_not_taken);
    tcase_add_test(tcase, an_alarming_wait_between_hosts_is_enough);
    return suite_run(suite);
}
