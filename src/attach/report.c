/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/cell.h"
#include "settings.h"

#define WHOLE 0.9 /* of all bytes: less may be a part of a model */

void msdu__tell_bad_list(int rank, const msdu__attach_comm *comm)
{
    static msdu__flag was_told;
    char text[512];
    if (msdu__attach_has_bad_setting(comm, text, sizeof(text)) &&
        !msdu__flag_swap(&was_told, true)) {
        (void)fprintf(stderr, "msdu: rank %d: nothing is attached: %s\n", rank, text);
    }
}

/* Three steps and more have come, by what the user says a step has, and were not found. */
static bool is_unmet(const msdu__recognizer *r)
{
    return r->state == MSDU__LEARNING && r->tensors_wanted > 0 &&
           r->total >= (uint64_t)3 * r->tensors_wanted;
}

void msdu__tell_vote(const msdu__recognizer *r, bool *is_told)
{
    if (*is_told) {
        return;
    }
    *is_told = r->unmet_count > 0 || is_unmet(r);
    if (r->unmet_count > 0) {
        (void)fprintf(stderr,
                      "msdu: MSDU_ATTACH_TENSORS is %u, but the trainer's steps have %u gradients "
                      "that can be taken%s: all is passed through\n",
                      r->tensors_wanted, r->unmet_count,
                      r->unmet_sums > r->unmet_count ? ", and small or denied ones" : "");
    } else if (*is_told) {
        (void)fprintf(stderr,
                      "msdu: MSDU_ATTACH_TENSORS is %u, but no sequence of so many gradients came "
                      "three times yet: all is passed through\n",
                      r->tensors_wanted);
    }
}

void msdu__tell_nothing(const msdu__recognizer *r, bool is_told)
{
    if (is_told) {
        return;
    }
    const bool is_asked = r->tensors_wanted > 0;
    (void)fprintf(
        stderr,
        r->votes > 0 && !is_asked
            ? "msdu: reductions repeat, but what a step is cannot be seen: their memory "
              "does not come back once a step, or its layers are all alike or lie in one place; "
              "MSDU_ATTACH_TENSORS says how many gradients a step has\n"
            : "msdu: no sequence of reductions came three times%s\n",
        is_asked ? " with MSDU_ATTACH_TENSORS gradients" : "");
}

/* What is to be done about it. */
static void tell_way_out(const msdu__recognizer *r, bool is_blind, bool has_doubt)
{
    if (is_blind) {
        (void)fprintf(stderr, "reduce each gradient from memory of its own, or set "
                              "MSDU_DOMAIN=gradient, which takes them in every step\n");
        return;
    }
    (void)fprintf(stderr, "MSDU_ATTACH_TENSORS=%u says that it is so%s\n", r->pattern_sums,
                  has_doubt ? "" : ", MSDU_TOTAL_STEPS how many steps there are");
}

void msdu__tell_doubt(const msdu__recognizer *r, bool *is_told)
{
    const bool is_blind = msdu__recognize_is_blind(r);
    const bool has_doubt = r->doubt >= MSDU__DOUBT_EQUAL;
    const bool is_unsaid = r->doubt > MSDU__DOUBT_SAID && r->total_steps == 0;
    if ((!has_doubt && !is_unsaid && !is_blind) || r->held_steps < MSDU__STEPS_PROVEN || *is_told) {
        return;
    }
    *is_told = true;
    (void)fprintf(stderr,
                  "msdu: a step seems to have %u gradients, but %s: no local steps, all is passed "
                  "through; ",
                  r->pattern_count,
                  r->has_twins && is_blind
                      ? "some are of one size, and their memory does not tell them apart"
                  : is_blind  ? "small ones were counted to meet MSDU_ATTACH_TENSORS, and memory "
                                "does not tell gradients apart"
                  : has_doubt ? "their memory moves, or all are alike, so two of them may be one "
                                "parameter"
                              : "it may be a part of one");
    tell_way_out(r, is_blind, has_doubt);
}

void msdu__tell_contradiction(const msdu__recognizer *r, bool had_engine)
{
    (void)fprintf(
        stderr,
        "msdu: of the %u gradients of a step some come from several places in memory, so "
        "they may be several parameters: %s passed through%s\n",
        r->pattern_count, had_engine ? "from now on all is" : "all is",
        r->tensors_wanted > 0 ? "" : "; MSDU_ATTACH_TENSORS says how many gradients a step has");
}

void msdu__tell_gain(const msdu__gain *gain, msdu__gain_phase before, const msdu__recognizer *r)
{
    const double ms = 1e-6;
    if (before == MSDU__GAIN_PLAIN) {
        (void)fprintf(stderr,
                      "msdu: %u gradients a step: plain steps take %.3g ms, of it %.3g in "
                      "reductions: %s\n",
                      r->tensor_count, gain->plain_ns * ms, gain->plain_wait_ns * ms,
                      gain->phase == MSDU__GAIN_TRIAL
                          ? "fewer bytes are tried"
                          : "too little to gain, passed through (MSDU_ATTACH=always takes them)");
    } else if (before == MSDU__GAIN_TRIAL || gain->phase == MSDU__GAIN_PLAIN) {
        (void)fprintf(stderr, "msdu: steps take %.3g ms with fewer bytes, %.3g plain: %s\n",
                      gain->taken_ns * ms, gain->plain_ns * ms,
                      gain->phase == MSDU__GAIN_KEPT ? "kept" : "passed through");
    }
}

void msdu__tell_break(const msdu__attach_engine *engine, const msdu__call *seen, bool is_last)
{
    (void)fprintf(
        stderr,
        "msdu: rank 0: the pattern of reductions changed after %" PRIu64 " steps: one of %" PRIu64
        " elements came unexpectedly; %s%s\n",
        engine->steps, seen->count,
        engine->is_accumulated ? "the next two reductions of each gradient join the ranks; " : "",
        is_last ? "for the second time, so all is passed through from now on; MSDU_ATTACH_TENSORS "
                  "says how many gradients a step has"
                : "passing through, and learning anew");
}

static void tell_sum(const msdu_summary *s)
{
    const double times = (double)s->bytes_plain / (double)s->bytes_sent;
    (void)fprintf(stderr,
                  "msdu: %" PRIu64 " steps, %" PRIu64 " rounds, domain %s, interval %" PRIu64
                  ", wire %s: %" PRIu64 " bytes sent by rank 0 instead of %" PRIu64
                  ", %.1f times %s\n",
                  s->steps, s->rounds, s->domain, s->interval_steps, s->wire, s->bytes_sent,
                  s->bytes_plain, times < 1 ? 1 / times : times, times < 1 ? "more" : "fewer");
}

static void tell_bytes(double bytes)
{
    const bool is_large = bytes >= 1e6;
    (void)fprintf(stderr, "%.3g %s", bytes * (is_large ? 1e-6 : 1e-3), is_large ? "MB" : "kB");
}

static void tell_passed(const msdu__ledger *ledger, const char *const *reasons)
{
    (void)fprintf(stderr, "msdu: passed through:");
    const char *comma = " ";
    for (int i = 0; i < MSDU__REASONS_MAX; i++) {
        if (ledger->passed[i] > 0) {
            (void)fprintf(stderr, "%s%" PRIu64 " %s", comma, ledger->passed[i], reasons[i]);
            comma = "; ";
        }
        if (ledger->passed_bytes[i] > 0) {
            (void)fprintf(stderr, ": ");
            tell_bytes((double)ledger->passed_bytes[i]);
        }
    }
    (void)fprintf(stderr, "%s\n", comma[0] == ' ' ? " nothing" : "");
}

/* Is what was found a whole model? The user knows its size; `all`: bytes of all sums. */
static void tell_step(const msdu__recognizer *r, uint64_t steps, double all)
{
    double bytes = 0;
    for (uint32_t i = 0; i < r->tensor_count; i++) {
        bytes += (double)msdu__call_bytes(&r->tensors[i]);
    }
    if (steps > 0 && bytes > 0) {
        (void)fprintf(stderr, "; a step has %u gradients of ", r->tensor_count);
        tell_bytes(bytes);
        (void)fprintf(stderr, ", %.3g %% of all bytes%s", 100 * bytes * (double)steps / all,
                      bytes * (double)steps < WHOLE * all ? ", so perhaps not the whole model"
                                                          : "");
    }
}

/* Of the whole job: what was passed through counts, too. */
static void tell_job(const msdu__ledger *ledger, const msdu__gain *gain, const msdu__recognizer *r,
                     int ranks)
{
    const uint64_t passed = msdu__ledger_passed_bytes(ledger);
    const uint64_t all = passed + ledger->taken_bytes;
    const double share = 2.0 * (ranks - 1) / ranks; /* of an allreduce's bytes, that a rank sends */
    const double sent = share * (double)passed + (double)ledger->sum.bytes_sent;
    (void)fprintf(stderr,
                  "msdu: the whole job: %" PRIu64 " steps%s, %" PRIu64
                  " of them taken; %.1f %% of the bytes of its sums of floats; %.3g MB sent "
                  "instead of %.3g",
                  ledger->steps,
                  r->pattern_count > 0 ? ""
                  : ledger->steps > 0  ? " understood, and later ones not"
                                       : " understood",
                  ledger->sum.steps, 100.0 * (double)ledger->taken_bytes / (double)all, sent * 1e-6,
                  share * (double)all * 1e-6);
    tell_step(r, ledger->steps, (double)all);
    if (ledger->breaks > 0) {
        (void)fprintf(stderr, "; the pattern changed %u times", ledger->breaks);
    }
    if (gain->kept_steps > 0 && gain->taken_ns > 0) {
        const double gained = (gain->plain_ns - gain->taken_ns) * (double)gain->kept_steps * 1e-9;
        (void)fprintf(stderr, "; a step took %.3g ms, %.3g without: %.3g s %s",
                      gain->taken_ns * 1e-6, gain->plain_ns * 1e-6, gained < 0 ? -gained : gained,
                      gained < 0 ? "lost" : "gained");
    }
    (void)fprintf(stderr, "\n");
}

void msdu__tell_ledger(const msdu__ledger *ledger, const msdu__gain *gain,
                       const msdu__recognizer *r, int ranks, const char *const *reasons)
{
    if (ledger->has_sum && ledger->sum.bytes_sent > 0) {
        tell_sum(&ledger->sum);
    }
    tell_passed(ledger, reasons);
    if (msdu__ledger_passed_bytes(ledger) + ledger->taken_bytes > 0) {
        tell_job(ledger, gain, r, ranks);
    }
}
