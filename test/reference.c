/* SPDX-License-Identifier: Apache-2.0 */
/* Training of all ranks in sequence; see reference.h. */
#include "reference.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FRAGMENTS_MOST 32

typedef struct fragment {
    int sync;       /* step at whose end the ranks meet next */
    int apply;      /* step at whose end the last mean is applied; -1: none under way */
    int last;       /* step of the last meeting; -1: none */
    int interval;   /* to the next one */
    int delay;      /* from the next one to its mean */
    double mean_sq; /* of the mean under way */
    bool is_void;   /* all weights were 0 */
} fragment;

typedef struct simulation {
    const ranks_job *job;
    const int *fragment_of;
    uint64_t elements;
    int32_t *dtype;
    int32_t *role;
    double weight[RANKS_MOST]; /* of the ranks, in this step */
    double weights;            /* of all */
    double *w[RANKS_MOST];
    double *g[RANKS_MOST];
    double *v[RANKS_MOST];
    double *snapshot[RANKS_MOST];
    double *anchor;
    double *mean; /* of pseudo-gradients, or of state */
    double *outer;
    fragment fragments[FRAGMENTS_MOST];
    int fragment_count;
    bool is_gradient;
    bool is_accumulated;
    bool is_anchored;
    bool is_auto; /* overlap auto: late only where the round is long enough */
    int delay;
    double norm_average;
} simulation;

static bool is_text(const char *setting, const char *wanted)
{
    return setting != NULL && strcmp(setting, wanted) == 0;
}

static bool has_rule(const simulation *s, const char *rule)
{
    return s->job->config.correct != NULL && strstr(s->job->config.correct, rule) != NULL;
}

/* Zero in the struct is the default; only the environment can say zero. */
static double setting(const char *variable, double given, double preset)
{
    const char *text = getenv(variable);
    return text != NULL ? strtod(text, NULL) : given != 0 ? given : preset;
}

/* The type in which a tensor is worked with. */
static double work(int32_t dtype, double x)
{
    return dtype == MSDU_FLOAT64 ? x : (double)(float)x;
}

/* What is left of x after it was on the wire. */
static double sent(const simulation *s, uint64_t i, double x)
{
    const char *wire = s->job->config.wire;
    bool is_half = s->dtype[i] == MSDU_FLOAT16 || s->dtype[i] == MSDU_BFLOAT16;
    if (is_half) {
        return ranks_round(s->dtype[i], x);
    }
    if (s->dtype[i] == MSDU_FLOAT32 && s->role[i] == MSDU_ROLE_MODEL) {
        return is_text(wire, "float16")    ? ranks_round(MSDU_FLOAT16, x)
               : is_text(wire, "bfloat16") ? ranks_round(MSDU_BFLOAT16, x)
                                           : x;
    }
    return x;
}

static double weighed(int32_t dtype, double weight, double x)
{
    return weight == 0 ? 0 : weight == 1 ? x : work(dtype, work(dtype, weight) * x);
}

/* Weighted sum of one value per rank in rank order, times factor, on the wire both ways. */
static double allreduce(const simulation *s, uint64_t i, const double *values, bool is_mean)
{
    int ranks = s->job->ranks;
    double sum = sent(s, i, weighed(s->dtype[i], s->weight[0], values[0]));
    for (int rank = 1; rank < ranks; rank++) {
        double x = weighed(s->dtype[i], s->weight[rank], values[rank]);
        sum = work(s->dtype[i], sum + sent(s, i, x));
    }
    double factor = work(s->dtype[i], 1.0 / ranks);
    double mean = sent(s, i, is_mean ? work(s->dtype[i], sum * factor) : sum);
    bool is_even = !is_mean || s->weights == 0 || s->weights == ranks;
    return is_even ? mean : work(s->dtype[i], mean * work(s->dtype[i], ranks / s->weights));
}

/* --- gradient domain --- */

static void reduce_gradients(simulation *s)
{
    bool is_mean = !is_text(s->job->config.reduce, "sum");
    for (uint64_t i = 0; i < s->elements; i++) {
        double values[RANKS_MOST] = {0};
        for (int rank = 0; rank < s->job->ranks; rank++) {
            values[rank] = s->g[rank][i];
        }
        double mean = ranks_round(s->dtype[i], allreduce(s, i, values, is_mean));
        for (int rank = 0; rank < s->job->ranks; rank++) {
            s->g[rank][i] = mean;
        }
    }
}

/* --- accumulated domain --- */

/* The oracle of the recursion: averaged parameters, momentum kept by every rank. */
static void average_parameters(simulation *s)
{
    for (uint64_t i = 0; i < s->elements && s->weights > 0; i++) {
        double sum = 0;
        for (int rank = 0; rank < s->job->ranks; rank++) {
            sum += s->weight[rank] * s->w[rank][i];
        }
        for (int rank = 0; rank < s->job->ranks && s->role[i] == MSDU_ROLE_MODEL; rank++) {
            s->w[rank][i] = sum / s->weights;
        }
    }
}

/* --- parameter domain --- */

static void capture(simulation *s, int index)
{
    fragment *f = &s->fragments[index];
    f->mean_sq = 0;
    f->is_void = s->weights == 0;
    for (uint64_t i = 0; i < s->elements; i++) {
        double values[RANKS_MOST] = {0};
        if (s->fragment_of[i] != index) {
            continue;
        }
        bool is_plain = s->role[i] != MSDU_ROLE_MODEL;
        for (int rank = 0; rank < s->job->ranks; rank++) {
            double w = s->w[rank][i];
            s->snapshot[rank][i] = w;
            values[rank] = is_plain ? w : work(s->dtype[i], s->anchor[i] - w);
        }
        s->mean[i] = allreduce(s, i, values, true);
        f->mean_sq += is_plain ? 0 : s->mean[i] * s->mean[i];
    }
}

static double clip_scale(simulation *s, const fragment *f)
{
    double ratio = setting("MSDU_CLIP_RATIO", s->job->config.clip_ratio, 3);
    double norm = sqrt(f->mean_sq);
    double limit = ratio * s->norm_average;
    double scale = 1;
    if (!has_rule(s, "clip")) {
        return 1;
    }
    if (s->norm_average > 0 && norm > limit) {
        scale = limit / norm;
        norm = limit;
    }
    s->norm_average += (s->norm_average > 0 ? 0.2 : 1.0) * (norm - s->norm_average);
    return scale;
}

/* Shaping rules on the mean of one element. */
static double shape(simulation *s, uint64_t i, double d, double scale)
{
    const msdu_config *c = &s->job->config;
    int32_t t = s->dtype[i];
    double lr = work(t, setting("MSDU_OUTER_LR", c->outer_lr, 0.7));
    double mu = work(t, setting("MSDU_OUTER_MOMENTUM", c->outer_momentum, 0.7));
    if (scale < 1) {
        d = work(t, d * work(t, scale));
    }
    if (!has_rule(s, "outer")) {
        return d;
    }
    double u = work(t, work(t, mu * s->outer[i]) + d);
    s->outer[i] = u;
    if (is_text(c->outer_kind, "momentum")) {
        return work(t, lr * u);
    }
    return work(t, lr * work(t, d + work(t, mu * u)));
}

/* The merge rule for one rank's element; the anchor has its new value. */
static double merge(const simulation *s, uint64_t i, double w, double snapshot)
{
    const msdu_config *c = &s->job->config;
    int32_t t = s->dtype[i];
    double mean = s->anchor[i];
    if (has_rule(s, "elastic")) {
        double alpha = work(t, setting("MSDU_ELASTIC_ALPHA", c->elastic_alpha, 0.5));
        return work(t, w - work(t, alpha * work(t, w - mean)));
    }
    if (has_rule(s, "blend")) {
        double own = s->delay > 0 ? 2.0 * s->delay : 1.0;
        double ranks = s->job->ranks;
        double first = work(t, work(t, own / (own + ranks)) * w);
        return work(t, first + work(t, work(t, ranks / (own + ranks)) * mean));
    }
    bool is_delayed = has_rule(s, "delayed") || (s->delay > 0 && !has_rule(s, "average"));
    if (is_delayed && s->delay > 0) {
        double keep = work(t, setting("MSDU_DELAYED_KEEP", c->delayed_keep, 1));
        return work(t, mean + work(t, keep * work(t, w - snapshot)));
    }
    return mean;
}

static void apply(simulation *s, int index)
{
    bool is_void = s->fragments[index].is_void;
    double scale = is_void ? 1 : clip_scale(s, &s->fragments[index]);
    bool is_reset = is_text(s->job->config.state, "reset");
    for (uint64_t i = 0; i < s->elements; i++) {
        bool is_plain = s->role[i] != MSDU_ROLE_MODEL;
        bool is_member = s->fragment_of[i] == index && !is_void;
        if (is_member && !is_plain) {
            double d = shape(s, i, s->mean[i], scale);
            s->anchor[i] = work(s->dtype[i], s->anchor[i] - d);
        }
        for (int rank = 0; rank < s->job->ranks; rank++) {
            double *w = &s->w[rank][i];
            if (is_reset && s->role[i] == MSDU_ROLE_STATE) {
                *w = 0;
            } else if (is_member) {
                *w = ranks_round(s->dtype[i],
                                 is_plain ? s->mean[i] : merge(s, i, *w, s->snapshot[rank][i]));
            }
        }
    }
}

/* --- when the ranks meet --- */

/* Policy fixed, decided by the round that met in this step. */
static int decided(const simulation *s, int step)
{
    const msdu_config *c = &s->job->config;
    bool is_warm = step + 1 >= c->warmup_steps;
    bool can_go_local =
        s->is_accumulated || (!is_text(c->domain, "gradient") && !s->job->hides_parameters);
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

static void enter_local(simulation *s, int step, int interval)
{
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
    if (f->last >= 0) {
        f->interval = decided(s, f->last);
    }
    f->last = step;
    if (s->is_gradient && f->interval > 1) {
        enter_local(s, step, f->interval);
    } else {
        f->sync = s->is_gradient ? step + 1 : next_meeting(s, step, f->interval, f->delay);
        f->delay = delay_of(s, f->interval);
    }
}

static uint64_t end_step(simulation *s, int step)
{
    uint64_t met = 0;
    int count = s->is_gradient ? 1 : s->fragment_count;
    for (int k = 0; k < count; k++) {
        fragment *f = &s->fragments[k];
        if (f->sync == step) {
            met += s->weights > 0 ? 1 : 0;
            if (s->is_accumulated) {
                average_parameters(s);
            } else if (!s->is_gradient) {
                capture(s, k);
                f->apply = step + f->delay;
            }
            note_meeting(s, k, step);
        }
    }
    for (int k = 0; k < s->fragment_count; k++) {
        if (s->fragments[k].apply == step) {
            s->fragments[k].apply = -1;
            apply(s, k);
        }
    }
    return met;
}

/* --- the end --- */

static bool are_equal(const simulation *s, int32_t role)
{
    for (uint64_t i = 0; i < s->elements; i++) {
        for (int rank = 1; rank < s->job->ranks; rank++) {
            if (s->role[i] == role && !(s->w[rank][i] == s->w[0][i])) {
                return false;
            }
        }
    }
    return true;
}

/* Parameters as pseudo-gradients, buffers as they are. */
static void average_at_end(simulation *s, int32_t role)
{
    bool is_anchored = s->is_anchored && role == MSDU_ROLE_MODEL;
    double sign = role == MSDU_ROLE_MODEL ? -1 : 1;
    double weights = s->weights > 0 ? s->weights : s->job->ranks;
    double all_one[RANKS_MOST] = {1, 1, 1, 1, 1, 1, 1, 1};
    const double *weight = s->weights > 0 ? s->weight : all_one;
    for (uint64_t i = 0; i < s->elements; i++) {
        int32_t t = s->dtype[i];
        double anchor = is_anchored ? s->anchor[i] : 0;
        double sum = weighed(t, weight[0], work(t, anchor + sign * s->w[0][i]));
        for (int rank = 1; rank < s->job->ranks; rank++) {
            double x = weighed(t, weight[rank], work(t, anchor + sign * s->w[rank][i]));
            sum = work(t, sum + x);
        }
        double mean = work(t, anchor + sign * work(t, sum * work(t, 1.0 / weights)));
        for (int rank = 0; rank < s->job->ranks && s->role[i] == role; rank++) {
            s->w[rank][i] = ranks_round(t, mean);
            s->anchor[i] = mean;
        }
    }
}

/* The end, or only a point where all ranks hold the same. */
static uint64_t synchronize(simulation *s)
{
    for (int k = 0; k < s->fragment_count; k++) {
        if (s->fragments[k].apply >= 0) {
            s->fragments[k].apply = -1;
            apply(s, k);
        }
    }
    bool has_model = !s->job->hides_parameters && !are_equal(s, MSDU_ROLE_MODEL);
    bool has_buffers = !are_equal(s, MSDU_ROLE_BUFFER);
    if (has_model) {
        average_at_end(s, MSDU_ROLE_MODEL);
    }
    if (has_buffers) {
        average_at_end(s, MSDU_ROLE_BUFFER);
    }
    return has_model || has_buffers ? 1 : 0;
}

/* --- steps --- */

static void take_weights(simulation *s, int step)
{
    s->weights = 0;
    for (int rank = 0; rank < s->job->ranks; rank++) {
        s->weight[rank] = ranks_weight(s->job, rank, step);
        s->weights += s->weight[rank];
    }
}

static void compute_gradients(simulation *s, int step)
{
    for (int rank = 0; rank < s->job->ranks; rank++) {
        for (uint64_t i = 0; i < s->elements; i++) {
            s->g[rank][i] = ranks_gradient(s->job, rank, step, s->dtype[i], i, s->w[rank][i]);
        }
    }
}

static void optimize(simulation *s, int step)
{
    for (int rank = 0; rank < s->job->ranks; rank++) {
        for (uint64_t i = 0; i < s->elements; i++) {
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
        memcpy(out->history[rank] + (uint64_t)step * s->elements, s->w[rank],
               s->elements * sizeof(double));
    }
}

static void run(simulation *s, reference *out)
{
    for (int step = 0; step < s->job->steps; step++) {
        record(s, step, out);
        take_weights(s, step);
        if (s->job->syncs_at != NULL && s->job->syncs_at(step)) {
            out->rounds += synchronize(s);
        }
        compute_gradients(s, step);
        if (s->is_gradient) {
            reduce_gradients(s);
        }
        optimize(s, step);
        out->rounds += end_step(s, step);
    }
    out->rounds += synchronize(s);
    record(s, s->job->steps, out);
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
    if (is_text(c->overlap, "delayed") || is_text(c->overlap, "streamed")) {
        return true;
    }
    return s->is_auto && !s->is_accumulated && !has_rule(s, "average") && !has_rule(s, "elastic") &&
           !has_rule(s, "blend");
}

static void describe_schedule(simulation *s)
{
    const msdu_config *c = &s->job->config;
    bool has_gradients = !s->job->hides_gradients;
    s->is_accumulated = is_text(c->domain, "accumulated");
    s->is_gradient = is_text(c->domain, "gradient") ||
                     ((c->domain == NULL || is_text(c->domain, "auto")) && has_gradients);
    s->is_anchored = !s->is_gradient && !s->is_accumulated;
    s->is_auto = c->overlap == NULL || is_text(c->overlap, "auto");
    s->delay = !may_be_late(s) ? 0 : c->delay_steps == 0 ? 1 : (int)c->delay_steps;
    s->fragment_count = 1; /* the library makes no fragment without a slice */
    for (uint64_t i = 0; i < s->elements && is_text(c->overlap, "streamed"); i++) {
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

/* --- comparison --- */

/* ck_assert writes to a file whenever it is passed, so it is only reached to fail. */
static void compare(const ranks_self *self, const double *expected, double tolerance)
{
    uint64_t count = ((uint64_t)self->job->steps + 1) * self->elements;
    ck_assert_ptr_nonnull(expected);
    for (uint64_t i = 0; i < count; i++) {
        double far = fabs(self->history[i] - expected[i]);
        if (!(far <= tolerance * (1 + fabs(expected[i])))) {
            ck_abort_msg("rank %d step %llu element %llu: %.17g instead of %.17g", self->rank,
                         (unsigned long long)(i / self->elements),
                         (unsigned long long)(i % self->elements), self->history[i], expected[i]);
        }
    }
}

void reference_check(const ranks_job *job, double tolerance)
{
    ranks_run got;
    reference wanted;
    ck_assert(ranks_go(job, &got));
    int failed = ranks_failed(&got, job->ranks);
    ck_assert_msg(failed < 0, "rank %d: %s", failed, failed < 0 ? "" : got.selves[failed].text);
    ck_assert(reference_go(job, got.selves[0].fragment, &wanted));
    for (int rank = 0; rank < job->ranks; rank++) {
        compare(&got.selves[rank], wanted.history[rank], tolerance);
        /* rounding may make the final average needed, or not */
        uint64_t rounds = got.selves[rank].summary.rounds;
        ck_assert_msg(tolerance > 0 || rounds == wanted.rounds, "%llu rounds instead of %llu",
                      (unsigned long long)rounds, (unsigned long long)wanted.rounds);
    }
    reference_free(&wanted);
    ranks_free(&got);
}
