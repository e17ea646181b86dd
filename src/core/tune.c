/* SPDX-License-Identifier: Apache-2.0 */
/* Size of slices and window: what the tuner has to know, and what follows from a round. */
#include "start.h"

#define LANES_FIRST 2
#define WINDOW_LEAST                                                                               \
    MSDU__WINDOW_AUTO /* measured: 2 gain nothing, and one that is late stops all */

/* Who forbids fusing waits for gradients one by one, and wants each as a whole. */
static bool may_cut(const msdu__pipeline *p)
{
    return p->settings.slice_bytes < 0 && p->settings.fuse_bytes != 0 && p->is_gradient &&
           p->ranks > 1 && p->fragment_count == 1 && p->tensors[0].place == MSDU_PLACE_HOST;
}

static bool may_tune(const msdu__pipeline *p)
{
    bool is_exact = p->settings.wire < 0 || p->settings.wire == MSDU__WIRE_FLOAT32;
    return may_cut(p) && is_exact && (p->backend->caps & MSDU_CAP_RANK_ORDER) != 0;
}

/* Rounds of a wire, where nothing was measured: as float32 was cut first, in as many lanes. */
msdu__tuning msdu__tune_of_wire(const msdu__pipeline *p, int wire, uint32_t lanes)
{
    msdu__tuning tuning = p->tuning_first;
    tuning.lanes = lanes;
    tuning.slice_bytes = msdu__tuner_narrow(tuning.slice_bytes, p->tuner_args.model_bytes,
                                            msdu__cut_wire_bytes(p, wire), p->fragment_count);
    return tuning;
}

void msdu__tune_prepare(msdu__pipeline *p)
{
    const msdu__settings *s = &p->settings;
    uint64_t bytes = msdu__cut_bytes(p);
    uint32_t window = s->window < 0 ? MSDU__WINDOW_AUTO : (uint32_t)s->window;
    p->may_cut = may_cut(p);
    p->is_tuned = may_tune(p);
    p->is_recut = p->is_tuned || (p->may_cut && s->wire < 0);
    p->tuner_args = (msdu__tuner_args){
        .model_bytes = bytes,
        .slice_least = msdu__tuner_slice_least(bytes),
        .slice_most = msdu__tuner_slice_most(bytes),
        .window_least = s->window < 0 ? WINDOW_LEAST : window,
        .window_most = s->window < 0 ? MSDU__WINDOW_TUNED : window,
        .lanes_most = (uint32_t)s->lanes,
        .is_whole = s->commit_tensor == 0,
        .is_single = p->tensor_count == 1,
    };
    uint32_t lanes = s->lanes < LANES_FIRST ? (uint32_t)s->lanes : LANES_FIRST;
    p->tuning = p->tuning_first =
        msdu__tuner_first(bytes, window, p->is_tuned ? lanes : (uint32_t)s->lanes);
    if (s->slice_bytes >= 0) {
        p->tuning.slice_bytes = (uint64_t)s->slice_bytes;
    } else if (s->wire >= 0) {
        p->tuning = msdu__tune_of_wire(p, (int)s->wire, p->tuning.lanes);
    }
    msdu__tune_begin(p);
}

void msdu__tune_begin(msdu__pipeline *p)
{
    msdu__tuner_begin(&p->tuner, p->tuning);
    p->fragments[0].tunings[0] = p->fragments[0].tunings[1] = p->tuning;
}

static void log_choice(msdu__pipeline *p, const msdu__round_stats *stats)
{
    const msdu__tuner *t = &p->tuner;
    msdu__log_line(&p->log, MSDU_LOG_INFO,
                   "step %llu: slices of %llu KiB, %u in flight, %u lanes (were %llu KiB, %u, %u): "
                   "link %.1f MB/s, %.0f us a slice beside its bytes, latency %.0f us",
                   (unsigned long long)stats->step,
                   (unsigned long long)(t->present.slice_bytes / 1024), t->present.window,
                   t->present.lanes, (unsigned long long)(p->tuning.slice_bytes / 1024),
                   p->tuning.window, p->tuning.lanes, t->cost.bytes_per_ns * 1e3,
                   t->cost.slice_ns / 1e3, t->cost.latency_ns / 1e3);
}

/*
 * Narrow rounds are held up by messages and quantizing, which the model does not know: small slices
 * would be the wrong answer. They go by the bytes that a slice sends, and nothing is measured any
 * more. Narrow formats next to each other change now and then, and each cut costs a step its
 * overlap: slices only grow until float32 comes back.
 */
static void note_wire(msdu__pipeline *p, const msdu__round_stats *stats)
{
    bool is_narrow = stats->wire != MSDU__WIRE_FLOAT32;
    uint32_t lanes = p->tuner.present.lanes;
    msdu__tuning wanted = is_narrow ? msdu__tune_of_wire(p, stats->wire, lanes) : p->tuning_first;
    if (!is_narrow && !p->is_narrowed) {
        return;
    }
    if (is_narrow && p->is_narrowed && wanted.slice_bytes < p->tuner.present.slice_bytes) {
        return;
    }
    p->is_narrowed = true;
    msdu__tuner_begin(&p->tuner, wanted);
}

void msdu__tune_hear(msdu__pipeline *p, msdu__fragment *f, const msdu__round_stats *stats)
{
    msdu__tuner_round round = {.bytes = stats->round_bytes,
                               .slices = f->slice_count,
                               .window = p->tuning.window,
                               .link_ns = (double)stats->link_ns};
    if (p->is_recut && f->round.is_gradient) {
        note_wire(p, stats);
    }
    if (p->is_tuned && !p->is_narrowed && f->round.is_gradient &&
        msdu__tuner_hear(&p->tuner, &p->tuner_args, &round)) {
        log_choice(p, stats);
    }
    f->tunings[(f->opened - 1) & 1] = p->tuner.present;
}
