/* SPDX-License-Identifier: Apache-2.0 */
/* Training of all ranks in sequence; see reference.h. */
#include "reference_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- when the ranks meet --- */

/* Policy fixed, decided by the round that met in this step. */
static int decided(const simulation *s, int step)
{
    const msdu_config *c = &s->job->config;
    bool is_warm = step + 1 >= c->warmup_steps;
    bool can_go_local =
        s->is_accumulated || (!simulated_text(c->domain, "gradient") && !s->job->hides_parameters);
    return is_warm && can_go_local ? (int)c->interval_steps : 1;
}

static int next_meeting(const simulation *s, int step, int interval, int delay)
{
    int total = (int)s->job->config.total_steps;
    int next = step + (interval > delay ? interval : delay + 1);
    return total > 0 && next >= total && step + delay + 1 < total ? total - 1 : next;
}

static int delay_of(const simulation *s, int interval)
{
    return s->is_auto && interval <= s->delay ? 0 : s->delay;
}

/* Anchors must be equal: momentum that stood still on a rank may have led parameters apart. */
static void enter_local(simulation *s, int step, int interval)
{
    s->rounds += s->was_uneven ? simulate_synchronize(s) : 0;
    int first = next_meeting(s, step, interval, delay_of(s, interval)) - step;
    s->is_gradient = false;
    s->is_anchored = true;
    for (uint64_t i = 0; i < s->elements; i++) {
        s->anchor[i] = s->w[0][i];
    }
    for (int k = 0; k < s->fragment_count; k++) {
        int offset = first * (k + 1) / s->fragment_count;
        s->fragments[k].interval = interval;
        s->fragments[k].delay = delay_of(s, interval);
        s->fragments[k].sync = step + (offset > 0 ? offset : 1);
    }
}

/* The meeting of this step is over: its successor follows the decision of the one before it. */
static void note_meeting(simulation *s, int index, int step)
{
    fragment *f = &s->fragments[index];
    bool is_any_out = false;
    for (int rank = 0; rank < s->job->ranks; rank++) {
        is_any_out = is_any_out || !s->has_input[rank];
    }
    f->interval = f->last >= 0 ? f->next : f->interval;
    f->interval = s->is_gradient && is_any_out ? 1 : f->interval;
    f->next = s->decision = s->weights > 0 ? decided(s, step) : s->decision;
    f->last = step;
    if (s->is_gradient && f->interval > 1) {
        enter_local(s, step, f->interval);
    } else {
        f->sync = s->is_gradient ? step + 1 : next_meeting(s, step, f->interval, f->delay);
        f->delay = delay_of(s, f->interval);
    }
}

/* Did ranks meet? */
static bool end_step(simulation *s, int step)
{
    bool have_met = false;
    int count = s->is_gradient ? 1 : s->fragment_count;
    for (int k = 0; k < count; k++) {
        fragment *f = &s->fragments[k];
        if (f->sync == step) {
            have_met = true;
            s->rounds += s->weights > 0 ? 1 : 0;
            if (s->is_accumulated) {
                simulate_drift(s);
            } else if (!s->is_gradient) {
                simulate_capture(s, k);
                f->apply = step + f->delay;
            }
            note_meeting(s, k, step);
        }
    }
    for (int k = 0; k < s->fragment_count; k++) {
        if (s->fragments[k].apply == step) {
            s->fragments[k].apply = -1;
            simulate_apply(s, k);
        }
    }
    return have_met;
}

/* --- steps --- */

static void take_weights(simulation *s, int step)
{
    s->weights = 0;
    for (int rank = 0; rank < s->job->ranks; rank++) {
        s->told[rank] = s->has_input[rank] ? ranks_weight(s->job, rank, step) : s->told[rank];
        s->weight[rank] = s->has_input[rank] ? s->told[rank] : 0;
        s->weights += s->weight[rank];
    }
}

/* Outside of epochs every rank has the weight it last told. */
static void count_told(simulation *s)
{
    s->weights = 0;
    for (int rank = 0; rank < s->job->ranks; rank++) {
        s->has_input[rank] = true;
        s->weight[rank] = s->told[rank];
        s->weights += s->told[rank];
    }
}

static void compute_gradients(simulation *s, int step)
{
    for (int rank = 0; rank < s->job->ranks; rank++) {
        for (uint64_t i = 0; i < s->elements && s->has_input[rank]; i++) {
            s->g[rank][i] = ranks_gradient(s->job, rank, step, s->dtype[i], i, s->w[rank][i]);
        }
    }
}

static void optimize(simulation *s, int step)
{
    for (int rank = 0; rank < s->job->ranks; rank++) {
        for (uint64_t i = 0; i < s->elements && s->has_input[rank]; i++) {
            double *w = &s->w[rank][i];
            if (s->role[i] != MSDU_ROLE_MODEL) {
                *w = ranks_state(rank, step, s->dtype[i], i, *w);
            } else {
                *w = ranks_update(s->job, step, s->dtype[i], *w, s->g[rank][i], &s->v[rank][i]);
            }
        }
    }
}

static void record(const simulation *s, int step, reference *out)
{
    for (int rank = 0; rank < s->job->ranks && out->history[rank] != NULL; rank++) {
        if (!s->has_input[rank]) {
            continue;
        }
        memcpy(out->history[rank] + (uint64_t)step * s->elements, s->w[rank],
               s->elements * sizeof(double));
    }
}

static bool take_step(simulation *s, int step, reference *out)
{
    record(s, step, out);
    take_weights(s, step);
    if (s->job->syncs_at != NULL && s->job->syncs_at(step)) {
        s->rounds += simulate_synchronize(s);
    }
    compute_gradients(s, step);
    if (s->is_gradient) {
        simulate_gradients(s);
    } else if (s->job->hosts != NULL) {
        simulate_hosts(s);
    }
    optimize(s, step);
    return end_step(s, step);
}

/* --- epochs in which ranks have different numbers of batches --- */

/* Who had input longest tells the others; where parameters meet they have met already. */
static void catch_up(simulation *s, int first, int epoch)
{
    int most = s->job->batches(first, epoch);
    for (uint64_t i = 0; i < s->elements; i++) {
        double sum = 0;
        double weights = 0;
        for (int rank = first; rank < s->job->ranks; rank++) {
            bool counts = s->job->batches(rank, epoch) == most;
            sum += counts ? s->told[rank] * s->w[rank][i] : 0;
            weights += counts ? s->told[rank] : 0;
        }
        for (int rank = 0; rank < s->job->ranks; rank++) {
            bool is_model = s->role[i] == MSDU_ROLE_MODEL;
            if (s->is_gradient && s->role[i] != MSDU_ROLE_BUFFER) {
                s->w[rank][i] = s->w[first][i];
            } else if (s->is_accumulated && is_model) {
                s->w[rank][i] = sum / weights;
            }
        }
    }
}

/* With local steps over two levels: likewise on each host, once late means are applied. */
static void catch_up_hosts(simulation *s, int epoch)
{
    simulate_drain(s);
    for (int rank = 0; rank < s->job->ranks; rank++) {
        int most = rank;
        bool is_uneven = false;
        for (int other = 0; other < s->job->ranks; other++) {
            bool is_mate = s->job->hosts[other] == s->job->hosts[rank];
            int batches = s->job->batches(other, epoch);
            int best = s->job->batches(most, epoch);
            is_uneven = is_uneven || (is_mate && batches != s->job->batches(rank, epoch));
            most = is_mate && (batches > best || (batches == best && other < most)) ? other : most;
        }
        for (uint64_t i = 0; i < s->elements && is_uneven && most != rank; i++) {
            s->w[rank][i] = s->role[i] != MSDU_ROLE_BUFFER ? s->w[most][i] : s->w[rank][i];
        }
    }
}

static void end_epoch(simulation *s, int epoch)
{
    int first = 0;
    bool is_uneven = false;
    for (int rank = 1; rank < s->job->ranks; rank++) {
        int batches = s->job->batches(rank, epoch);
        first = batches > s->job->batches(first, epoch) ? rank : first;
        is_uneven = is_uneven || batches != s->job->batches(0, epoch);
    }
    if (!s->is_gradient && s->job->hosts != NULL) {
        catch_up_hosts(s, epoch);
    } else if (is_uneven) {
        s->was_uneven = s->was_uneven || s->is_gradient;
        catch_up(s, first, epoch);
    }
}

/* Returns the first step of the next. */
static int take_epoch(simulation *s, int epoch, int step, reference *out)
{
    int first = step;
    for (bool is_over = false; !is_over && step < s->job->steps; step++) {
        bool has_any = false;
        for (int rank = 0; rank < s->job->ranks; rank++) {
            s->has_input[rank] = step - first < s->job->batches(rank, epoch);
            has_any = has_any || s->has_input[rank];
        }
        is_over = take_step(s, step, out) && !has_any;
    }
    end_epoch(s, epoch);
    return step;
}

static void run(simulation *s, reference *out)
{
    int step = 0;
    for (int rank = 0; rank < RANKS_MOST; rank++) {
        s->has_input[rank] = true;
        s->told[rank] = 1;
    }
    for (; step < s->job->steps && s->job->epochs == 0; step++) {
        (void)take_step(s, step, out);
    }
    for (int epoch = 0; epoch < s->job->epochs; epoch++) {
        step = take_epoch(s, epoch, step, out);
    }
    count_told(s);
    s->rounds += simulate_synchronize(s);
    record(s, s->job->steps, out);
    out->rounds = s->rounds;
}

/* --- set up --- */

static void describe_elements(simulation *s)
{
    uint64_t at = 0;
    for (uint32_t t = 0; t < s->job->tensor_count; t++) {
        for (uint64_t i = 0; i < s->job->tensors[t].count; i++, at++) {
            s->dtype[at] = s->job->tensors[t].dtype;
            s->role[at] = s->job->tensors[t].role;
            for (int rank = 0; rank < s->job->ranks; rank++) {
                s->w[rank][at] = ranks_initial(s->job, rank, s->dtype[at], at);
            }
        }
    }
}

/* Overlap auto is late only where the correction keeps the steps taken meanwhile. */
static bool may_be_late(const simulation *s)
{
    const msdu_config *c = &s->job->config;
    if (simulated_text(c->overlap, "delayed") || simulated_text(c->overlap, "streamed")) {
        return true;
    }
    return s->is_auto && !s->is_accumulated && !simulated_rule(s, "average") &&
           !simulated_rule(s, "elastic") && !simulated_rule(s, "blend");
}

static void describe_schedule(simulation *s)
{
    const msdu_config *c = &s->job->config;
    bool has_gradients = !s->job->hides_gradients;
    s->decision = 1;
    s->is_accumulated = simulated_text(c->domain, "accumulated");
    s->is_gradient = simulated_text(c->domain, "gradient") ||
                     ((c->domain == NULL || simulated_text(c->domain, "auto")) && has_gradients);
    s->is_anchored = !s->is_gradient && !s->is_accumulated;
    s->is_auto = c->overlap == NULL || simulated_text(c->overlap, "auto");
    s->delay = !may_be_late(s) ? 0 : c->delay_steps == 0 ? 1 : (int)c->delay_steps;
    s->fragment_count = 1; /* the library makes no fragment without a slice */
    for (uint64_t i = 0; i < s->elements && simulated_text(c->overlap, "streamed"); i++) {
        bool is_more = s->fragment_of[i] >= s->fragment_count;
        s->fragment_count = is_more ? s->fragment_of[i] + 1 : s->fragment_count;
    }
    for (int k = 0; k < FRAGMENTS_MOST; k++) {
        s->fragments[k] =
            (fragment){.sync = s->is_gradient ? 0 : k, .apply = -1, .last = -1, .interval = 1};
        s->fragments[k].delay = delay_of(s, 1);
    }
    memcpy(s->anchor, s->w[0], s->elements * sizeof(double));
}

static double *column(simulation *s, bool *is_there)
{
    double *values = calloc(s->elements, sizeof(double));
    *is_there = *is_there && values != NULL;
    return values;
}

static void simulation_free(simulation *s)
{
    for (int rank = 0; rank < RANKS_MOST; rank++) {
        free(s->w[rank]);
        free(s->g[rank]);
        free(s->v[rank]);
        free(s->snapshot[rank]);
    }
    free(s->anchor);
    free(s->mean);
    free(s->outer);
    free(s->dtype);
    free(s->role);
}

static bool reserve(simulation *s, reference *out)
{
    bool is_there = true;
    for (int rank = 0; rank < s->job->ranks; rank++) {
        s->w[rank] = column(s, &is_there);
        s->g[rank] = column(s, &is_there);
        s->v[rank] = column(s, &is_there);
        for (uint64_t i = 0; is_there && i < s->elements; i++) {
            s->v[rank][i] = (double)NAN;
        }
        s->snapshot[rank] = column(s, &is_there);
        out->history[rank] = calloc(((size_t)s->job->steps + 1) * s->elements, sizeof(double));
        is_there = is_there && out->history[rank] != NULL;
    }
    s->anchor = column(s, &is_there);
    s->mean = column(s, &is_there);
    s->outer = column(s, &is_there);
    s->dtype = calloc(s->elements, sizeof(int32_t));
    s->role = calloc(s->elements, sizeof(int32_t));
    return is_there && s->dtype != NULL && s->role != NULL;
}

bool reference_go(const ranks_job *job, const int *fragment_of, reference *out)
{
    simulation s = {.job = job, .fragment_of = fragment_of, .elements = ranks_elements(job)};
    *out = (reference){.elements = s.elements, .steps = job->steps};
    bool is_there = reserve(&s, out);
    if (is_there) {
        describe_elements(&s);
        describe_schedule(&s);
        run(&s, out);
    }
    simulation_free(&s);
    return is_there;
}

void reference_free(reference *ref)
{
    for (int rank = 0; rank < RANKS_MOST; rank++) {
        free(ref->history[rank]);
    }
}
