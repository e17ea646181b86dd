/* SPDX-License-Identifier: Apache-2.0 */
/* Joining ranks that took local steps, by additions to plainly reduced gradients. */
#include "drift_recovery.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#define CALLS_LEAST 2 /* until both parameters and momentum are equal */
#define ROUNDINGS   4 /* at most, from an element's addition to its x */

msdu__apart *msdu__apart_new(uint64_t count, int32_t kind)
{
    msdu__apart *apart = calloc(1, sizeof(*apart));
    if (apart == NULL) {
        return NULL;
    }
    apart->count = count;
    apart->kind = kind;
    size_t bytes = msdu__apart_is_double(apart) ? sizeof(double) : sizeof(float);
    apart->parameter = calloc(count, bytes);
    apart->momentum = calloc(count, bytes);
    if (apart->parameter == NULL || apart->momentum == NULL) {
        msdu__apart_free(apart);
        return NULL;
    }
    return apart;
}

bool msdu__apart_is_double(const msdu__apart *apart)
{
    return apart->kind % 2 == 0;
}

void msdu__apart_free(msdu__apart *list)
{
    while (list != NULL) {
        msdu__apart *next = list->next;
        free(list->parameter);
        free(list->momentum);
        free(list);
        list = next;
    }
}

/* Of `values`, in its type: at the first that is not finite, that one. */
static double largest_of(const msdu__apart *apart, const void *values)
{
    const double *wide = values;
    const float *narrow = values;
    double most = 0;
    for (uint64_t i = 0; i < apart->count && isfinite(most); i++) {
        const double size = fabs(msdu__apart_is_double(apart) ? wide[i] : (double)narrow[i]);
        most = size > most || !isfinite(size) ? size : most;
    }
    return most;
}

double msdu__apart_largest(const msdu__apart *list)
{
    double most = 0;
    for (; list != NULL && isfinite(most); list = list->next) {
        const double size = largest_of(list, list->parameter);
        most = size > most || !isfinite(size) ? size : most;
    }
    return most;
}

bool msdu__apart_differs(const msdu__apart *apart)
{
    return !(largest_of(apart, apart->parameter) <= apart->rounding) ||
           (apart->is_unsure && msdu__apart_drifts(apart));
}

bool msdu__apart_drifts(const msdu__apart *apart)
{
    return largest_of(apart, apart->momentum) != 0;
}

msdu__apart *msdu__apart_find(msdu__apart *list, uint64_t count, int32_t kind, uint64_t memory)
{
    msdu__apart *found = NULL;
    for (msdu__apart *at = list; at != NULL; at = at->next) {
        const bool is_like_it = at->count == count && at->kind == kind && !at->is_busy &&
                                (at->memory == 0 || at->memory == memory);
        if (is_like_it && (found == NULL || at->calls < found->calls)) {
            found = at;
        }
    }
    return found;
}

/* Coefficients of u in x and w, and of an update in u and w. */
typedef struct control {
    double of_parameter;
    double of_momentum;
    double of_decay;  /* what the optimizer itself will add to the gradient */
    double of_input;  /* a */
    double of_buffer; /* b */
    msdu__optimizer o;
} control;

static control control_of(const msdu__optimizer *o)
{
    const double a = o->is_nesterov ? 1.0 : 0.0;
    const double b = o->is_nesterov ? o->momentum : 1.0;
    const double reach = a + o->factor * b - a * o->momentum;
    return (control){
        .of_parameter = 1.0 / (o->lr * reach),
        .of_momentum = -(b - a * o->momentum / o->factor) * o->momentum / reach,
        .of_decay = o->weight_decay,
        .of_input = a,
        .of_buffer = b,
        .o = *o,
    };
}

/* What is added to a sum whose own value is `sum`; x and w become those after the update. The
 * addition counts as it was rounded, so the next call makes up for it. A trainer whose sum is not
 * finite makes no update, or has nothing left to join. */
static double join_element(const control *k, double sum, bool is_double, double *x, double *w,
                           double *rounding)
{
    if (!isfinite(sum)) {
        return sum;
    }
    double wanted = sum + k->of_parameter * *x + k->of_momentum * *w - k->of_decay * *x;
    double given = is_double ? wanted : (double)(float)wanted;
    const double epsilon = is_double ? DBL_EPSILON : (double)FLT_EPSILON;
    const double most = ROUNDINGS * epsilon * (fabs(*x) + k->o.lr * fabs(given));
    *rounding = most > *rounding ? most : *rounding;
    double u = given - sum + k->o.weight_decay * *x;
    *w = k->o.momentum * *w + k->o.factor * u;
    *x -= k->o.lr * (k->of_input * u + k->of_buffer * *w);
    return given;
}

static void join_floats(const control *k, msdu__apart *apart, uint64_t first, float *sum,
                        uint64_t count)
{
    float *parameter = (float *)apart->parameter + first;
    float *momentum = (float *)apart->momentum + first;
    for (uint64_t i = 0; i < count; i++) {
        double x = (double)parameter[i];
        double w = (double)momentum[i];
        sum[i] = (float)join_element(k, (double)sum[i], false, &x, &w, &apart->rounding);
        parameter[i] = (float)x;
        momentum[i] = (float)w;
    }
}

static void join_doubles(const control *k, msdu__apart *apart, uint64_t first, double *sum,
                         uint64_t count)
{
    double *parameter = (double *)apart->parameter + first;
    double *momentum = (double *)apart->momentum + first;
    for (uint64_t i = 0; i < count; i++) {
        sum[i] = join_element(k, sum[i], true, &parameter[i], &momentum[i], &apart->rounding);
    }
}

void msdu__rejoin_add(const msdu__optimizer *optimizer, msdu__apart *apart, uint64_t first,
                      uint64_t count, void *sum)
{
    control k = control_of(optimizer);
    if (!(optimizer->lr > 0)) { /* nothing moves parameters now; the momentum goes its way */
        k.of_parameter = k.of_momentum = k.of_decay = 0;
    }
    apart->rounding = first == 0 ? 0 : apart->rounding;
    if (msdu__apart_is_double(apart)) {
        join_doubles(&k, apart, first, sum, count);
    } else {
        join_floats(&k, apart, first, sum, count);
    }
}

bool msdu__rejoin_call(const msdu__optimizer *optimizer, msdu__apart *apart)
{
    bool can_move = optimizer->lr > 0;
    bool is_same_lr = apart->calls > 0 && apart->last_lr == optimizer->lr;
    apart->calls += can_move ? 1 : 0;
    apart->last_lr = optimizer->lr;
    return can_move && apart->calls >= CALLS_LEAST && is_same_lr;
}

static bool is_finite(const msdu__apart *apart, const void *sum)
{
    for (uint64_t i = 0; i < apart->count; i++) {
        if (msdu__apart_is_double(apart) ? !isfinite(((const double *)sum)[i])
                                         : !isfinite(((const float *)sum)[i])) {
            return false;
        }
    }
    return true;
}

bool msdu__rejoin(const msdu__optimizer *optimizer, msdu__apart *apart, void *sum)
{
    if (!is_finite(apart, sum)) {
        return false;
    }
    msdu__rejoin_add(optimizer, apart, 0, apart->count, sum);
    return msdu__rejoin_call(optimizer, apart);
}
