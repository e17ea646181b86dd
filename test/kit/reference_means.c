/* SPDX-License-Identifier: Apache-2.0 */
/* Means of all ranks of a reference run, and what is done with them; see reference.h. */
#include "reference_impl.h"

#include "ranks_place.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool simulated_text(const char *setting, const char *wanted)
{
    return setting != NULL && strcmp(setting, wanted) == 0;
}

bool simulated_rule(const simulation *s, const char *rule)
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
        return simulated_text(wire, "float16")    ? ranks_round(MSDU_FLOAT16, x)
               : simulated_text(wire, "bfloat16") ? ranks_round(MSDU_BFLOAT16, x)
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

void simulate_gradients(simulation *s)
{
    bool is_mean = !simulated_text(s->job->config.reduce, "sum");
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

/* Weighted, over the ranks of one host; those without input have no part in it. */
static void average_host(simulation *s, uint64_t i, char host)
{
    const char *hosts = s->job->hosts;
    int count = 0;
    double sum = 0;
    double weights = 0;
    for (int rank = 0; rank < s->job->ranks; rank++) {
        if (hosts[rank] == host) {
            sum = work(s->dtype[i], sum + weighed(s->dtype[i], s->weight[rank], s->g[rank][i]));
            weights += s->weight[rank];
            count++;
        }
    }
    double mean = work(s->dtype[i], sum * work(s->dtype[i], 1.0 / count));
    if (weights != count && weights > 0) {
        mean = work(s->dtype[i], mean * work(s->dtype[i], count / weights));
    }
    for (int rank = 0; rank < s->job->ranks; rank++) {
        if (hosts[rank] == host && s->has_input[rank] && count > 1) {
            s->g[rank][i] = ranks_round(s->dtype[i], mean);
        }
    }
}

void simulate_hosts(simulation *s)
{
    for (uint64_t i = 0; i < s->elements; i++) {
        for (const char *host = "abcdefgh"; *host != '\0'; host++) {
            if (strchr(s->job->hosts, *host) != NULL) {
                average_host(s, i, *host);
            }
        }
    }
}

/* --- accumulated domain --- */

/* The oracle of the recursion: averaged parameters, momentum kept by every rank. */
void simulate_drift(simulation *s)
{
    for (uint64_t i = 0; i < s->elements && s->weights > 0; i++) {
        double sum = 0;
        for (int rank = 0; rank < s->job->ranks; rank++) {
            sum += s->weight[rank] * s->w[rank][i];
        }
        for (int rank = 0; rank < s->job->ranks && s->role[i] == MSDU_ROLE_MODEL; rank++) {
            s->w[rank][i] = s->has_input[rank] ? sum / s->weights : s->w[rank][i];
        }
    }
}

/* --- parameter domain --- */

/* Would the correction leave equal ranks where they are? */
static bool keeps_equal(const simulation *s, int delay)
{
    const msdu_config *c = &s->job->config;
    bool is_average = simulated_rule(s, "average");
    bool is_other = c->correct != NULL && !is_average && !simulated_rule(s, "delayed");
    double keep = setting("MSDU_DELAYED_KEEP", c->delayed_keep, 1);
    return !is_other && (delay == 0 || (!is_average && keep == 1));
}

static bool is_equal(const simulation *s, int index)
{
    /* a device tells no hash of what it captured */
    bool is = ranks_place() == MSDU_PLACE_HOST && keeps_equal(s, s->fragments[index].delay);
    for (int rank = 0; rank < s->job->ranks; rank++) {
        is = is && s->weight[rank] == 1;
        for (uint64_t i = 0; is && i < s->elements; i++) {
            bool is_meant = s->fragment_of[i] == index && s->role[i] == MSDU_ROLE_MODEL;
            is = !is_meant || s->w[rank][i] == s->w[0][i];
        }
    }
    return is;
}

void simulate_capture(simulation *s, int index)
{
    fragment *f = &s->fragments[index];
    f->mean_sq = 0;
    f->is_equal = is_equal(s, index);
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
    if (!simulated_rule(s, "clip")) {
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
    if (!simulated_rule(s, "outer")) {
        return d;
    }
    double u = work(t, work(t, mu * s->outer[i]) + d);
    s->outer[i] = u;
    if (simulated_text(c->outer_kind, "momentum")) {
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
    if (simulated_rule(s, "elastic")) {
        double alpha = work(t, setting("MSDU_ELASTIC_ALPHA", c->elastic_alpha, 0.5));
        return work(t, w - work(t, alpha * work(t, w - mean)));
    }
    if (simulated_rule(s, "blend")) {
        double own = s->delay > 0 ? 2.0 * s->delay : 1.0;
        double ranks = s->job->ranks;
        double first = work(t, work(t, own / (own + ranks)) * w);
        return work(t, first + work(t, work(t, ranks / (own + ranks)) * mean));
    }
    bool is_delayed =
        simulated_rule(s, "delayed") || (s->delay > 0 && !simulated_rule(s, "average"));
    if (is_delayed && s->delay > 0) {
        double keep = work(t, setting("MSDU_DELAYED_KEEP", c->delayed_keep, 1));
        return work(t, mean + work(t, keep * work(t, w - snapshot)));
    }
    return mean;
}

void simulate_apply(simulation *s, int index)
{
    bool is_void = s->fragments[index].is_void;
    double scale = is_void ? 1 : clip_scale(s, &s->fragments[index]);
    bool is_reset = simulated_text(s->job->config.state, "reset");
    for (uint64_t i = 0; i < s->elements; i++) {
        bool is_plain = s->role[i] != MSDU_ROLE_MODEL;
        bool is_member = s->fragment_of[i] == index && !is_void;
        if (is_member && !is_plain && s->fragments[index].is_equal) {
            s->anchor[i] = s->snapshot[0][i];
            continue;
        }
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

void simulate_drain(simulation *s)
{
    for (int k = 0; k < s->fragment_count; k++) {
        if (s->fragments[k].apply >= 0) {
            s->fragments[k].apply = -1;
            simulate_apply(s, k);
        }
    }
}

/* The end, or only a point where all ranks hold the same. */
uint64_t simulate_synchronize(simulation *s)
{
    simulate_drain(s);
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
