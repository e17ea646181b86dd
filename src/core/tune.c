/* SPDX-License-Identifier: Apache-2.0 */
/* Size of slices and window: what the tuner has to know, and what follows from a round. */
#include "tune.h"

#include "cut.h"

#define LANES_FIRST 2
#define WINDOW_LEAST                                                                               \
    MSDU__WINDOW_AUTO /* measured: 2 gain nothing, and one that is late stops all */

/* fuse_bytes = 0 says that the trainer waits for tensors one by one: they are never re-sliced. */
static bool may_cut(const msdu__engine *e)
{
    return e->job->settings.slice_bytes < 0 && e->job->settings.fuse_bytes != 0 &&
           e->job->starts_gradients && e->job->ranks > 1 && e->model->fragment_count == 1 &&
           e->model->tensors[0].place == MSDU_PLACE_HOST;
}

static bool may_tune(const msdu__engine *e)
{
    bool is_exact = e->job->settings.wire < 0 || e->job->settings.wire == MSDU__WIRE_FLOAT32;
    return may_cut(e) && is_exact && (e->job->backend->caps & MSDU_CAP_RANK_ORDER) != 0;
}

/* Rounds of a wire, where nothing was measured: as float32 was cut first, in as many channels. */
msdu__tuning msdu__tune_of_wire(const msdu__job *job, const msdu__model *model, int wire,
                                uint32_t lanes)
{
    msdu__tuning tuning = model->recut.first;
    tuning.lanes = lanes;
    tuning.slice_bytes =
        msdu__tuner_compressed(tuning.slice_bytes, model->recut.args.model_bytes,
                               msdu__cut_wire_bytes(job, model, wire), model->fragment_count);
    return tuning;
}

void msdu__tune_prepare(msdu__engine *e)
{
    const msdu__settings *s = &e->job->settings;
    uint64_t bytes = msdu__cut_bytes(e->job, e->model);
    uint32_t window = s->window < 0 ? MSDU__WINDOW_AUTO : (uint32_t)s->window;
    e->model->recut.may_cut = may_cut(e);
    e->model->recut.is_tuned = may_tune(e);
    e->model->recut.is_recut = e->model->recut.is_tuned || (e->model->recut.may_cut && s->wire < 0);
    e->model->recut.args = (msdu__tuner_args){
        .model_bytes = bytes,
        .slice_least = msdu__tuner_slice_least(bytes),
        .slice_most = msdu__tuner_slice_most(bytes),
        .window_least = s->window < 0 ? WINDOW_LEAST : window,
        .window_most = s->window < 0 ? MSDU__WINDOW_TUNED : window,
        .lanes_most = (uint32_t)s->lanes,
        .is_whole = s->commit_tensor == 0,
        .is_single = e->model->tensor_count == 1,
    };
    uint32_t lanes = s->lanes < LANES_FIRST ? (uint32_t)s->lanes : LANES_FIRST;
    e->model->tuning = e->model->recut.first =
        msdu__tuner_first(bytes, window, e->model->recut.is_tuned ? lanes : (uint32_t)s->lanes);
    if (s->slice_bytes >= 0) {
        e->model->tuning.slice_bytes = (uint64_t)s->slice_bytes;
    } else if (s->wire >= 0) {
        e->model->tuning =
            msdu__tune_of_wire(e->job, e->model, (int)s->wire, e->model->tuning.lanes);
    }
    msdu__tune_begin(e);
}

void msdu__tune_begin(msdu__engine *e)
{
    msdu__tuner_begin(&e->tuner, e->model->tuning);
    msdu__answer *answers = e->hand->fragments[0].answers;
    answers[0].tuning = answers[1].tuning = e->model->tuning;
}

static void log_choice(msdu__engine *e, const msdu__round_stats *stats)
{
    const msdu__tuner *t = &e->tuner;
    msdu__log_line(&e->job->log, MSDU_LOG_INFO,
                   "step %llu: slices of %llu KiB, %u in flight, %u lanes (were %llu KiB, %u, %u): "
                   "link %.1f MB/s, %.0f us a slice beside its bytes, latency %.0f us",
                   (unsigned long long)stats->step,
                   (unsigned long long)(t->present.slice_bytes / 1024), t->present.window,
                   t->present.lanes, (unsigned long long)(e->model->tuning.slice_bytes / 1024),
                   e->model->tuning.window, e->model->tuning.lanes, t->cost.bytes_per_ns * 1e3,
                   t->cost.slice_ns / 1e3, t->cost.latency_ns / 1e3);
}

/*
 * Compressed rounds are held up by messages and quantizing, which the model does not know: small
 * slices would be the wrong answer. They go by the bytes that a slice sends, and nothing is
 * measured any more. Compressed formats next to each other change now and then, and each slicing
 * costs a step its overlap: slices only grow until float32 comes back, with what was the best for
 * it.
 */
static void note_wire(msdu__engine *e, const msdu__round_stats *stats)
{
    bool is_compressed = stats->wire != MSDU__WIRE_FLOAT32;
    if (!e->was_compressed) {
        e->exact_tuning = e->tuner.is_settled ? e->tuner.present : e->model->recut.first;
    }
    uint32_t lanes = e->tuner.present.lanes;
    msdu__tuning wanted =
        is_compressed ? msdu__tune_of_wire(e->job, e->model, stats->wire, lanes) : e->exact_tuning;
    if (!is_compressed && !e->was_compressed) {
        return;
    }
    if (is_compressed && e->was_compressed && wanted.slice_bytes < e->tuner.present.slice_bytes) {
        return;
    }
    e->was_compressed = true;
    msdu__tuner_begin(&e->tuner, wanted);
}

void msdu__tune_hear(msdu__engine *e, msdu__fragment *f, const msdu__round_stats *stats)
{
    msdu__tuner_round round = {.bytes = stats->round_bytes,
                               .slices = f->slice_count,
                               .window = e->model->tuning.window,
                               .link_ns = (double)stats->link_ns};
    if (e->model->recut.is_recut && f->round.is_gradient) {
        note_wire(e, stats);
    }
    if (e->model->recut.is_tuned && !e->was_compressed && f->round.is_gradient &&
        msdu__tuner_hear(&e->tuner, &e->model->recut.args, &round)) {
        log_choice(e, stats);
    }
    msdu__engine_answer(e, f)->tuning = e->tuner.present;
}
