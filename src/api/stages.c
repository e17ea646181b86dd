/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of pipelines for the caller: what the search finds, or why there is nothing. */
#include <math.h>
#include <string.h>

#include <msdu/stages.h>

#include "base/base.h"
#include "stages/build.h"
#include "stages/given.h"
#include "stages_check.h"

/* --- plans --- */

/* Why there is none. A device can always have the whole model but for its memory. */
static msdu_status explain_none(const msdu_stages_question *q, const msdu__stages_model *m)
{
    double most = 0;
    double sum = 0;
    for (uint32_t d = 0; d < m->devices; d++) {
        most = fmax(most, m->memory[d]);
        sum += m->memory[d];
    }
    for (uint32_t l = 0; l < m->layers; l++) {
        double bytes = msdu__stages_bytes(m, l, l + 1, 1);
        if (bytes > most) {
            return msdu__fail(MSDU_ERR_NOT_FOUND,
                              "stages: memory_bytes: %s needs %.0f bytes by itself with %u "
                              "micro-batches; the largest device has %.0f",
                              msdu__stages_name_of("layer", q->layer_names, l).text, bytes,
                              m->micro_batches, most);
        }
    }
    return msdu__fail(MSDU_ERR_NOT_FOUND,
                      "stages: memory_bytes: no cut fits: the model needs %.0f bytes beside what "
                      "is received, devices with links between them have at most %.0f together",
                      msdu__stages_bytes(m, 0, m->layers, 1), sum);
}

/* The plan with M micro-batches; *made_out: NULL if there is none, with the reason. */
static msdu_status plan_for(const msdu_stages_question *q, uint32_t micro_batches,
                            msdu__stages_memory *memory, msdu__stages_made **made_out)
{
    msdu__stages_model model;
    msdu__search_answer *answer = msdu__stages_take(memory, 1, sizeof(*answer));
    if (answer == NULL || !msdu__stages_model_make(q, micro_batches, memory, &model)) {
        return msdu__fail(MSDU_ERR_NO_MEMORY, "stages: out of memory");
    }
    switch (msdu__search(&model, memory, answer)) {
    case MSDU__SEARCH_OK:
        *made_out = msdu__stages_build(&model, answer, q->ahead);
        return *made_out != NULL ? MSDU_OK
                                 : msdu__fail(MSDU_ERR_NO_MEMORY, "stages: out of memory");
    case MSDU__SEARCH_TOO_MANY:
        return msdu__fail(MSDU_ERR_UNSUPPORTED,
                          "stages: too many different devices for %u layers: make those alike "
                          "equal in all values, or join layers",
                          q->layers);
    case MSDU__SEARCH_NONE:
        return explain_none(q, &model);
    case MSDU__SEARCH_SHORT:
        break;
    }
    return msdu__fail(MSDU_ERR_NO_MEMORY, "stages: out of memory");
}

static msdu_status plan_once(const msdu_stages_question *q, uint32_t micro_batches,
                             msdu__stages_made **made_out)
{
    msdu__stages_memory memory = {.count = 0};
    msdu_status status = plan_for(q, micro_batches, &memory, made_out);
    msdu__stages_give_back(&memory);
    return status;
}

/* The best number of micro-batches; of equals, the smallest. */
static msdu_status plan_best(const msdu_stages_question *q, msdu__stages_made **made_out)
{
    msdu__stages_made *best = NULL;
    msdu_status status = MSDU_OK;
    uint32_t most = q->batch < MSDU_STAGES_MICRO_MAX ? q->batch : MSDU_STAGES_MICRO_MAX;
    for (uint32_t count = 1; count <= most; count++) {
        msdu__stages_made *made = NULL;
        if (q->batch % count != 0) {
            continue;
        }
        status = plan_once(q, count, &made);
        if (status != MSDU_OK && status != MSDU_ERR_NOT_FOUND) {
            msdu__stages_unbuild(best);
            return status;
        }
        if (made != NULL && (best == NULL || made->plan.step_ns < best->plan.step_ns)) {
            msdu__stages_unbuild(best);
            best = made;
        } else {
            msdu__stages_unbuild(made);
        }
    }
    *made_out = best;
    return best != NULL ? MSDU_OK : status;
}

msdu_status msdu_stages_plan(const msdu_stages_question *question, msdu_stages **plan_out)
{
    msdu_stages_question q;
    msdu__stages_made *made = NULL;
    if (plan_out == NULL) {
        return msdu__fail(MSDU_ERR_INVALID, "plan_out is NULL");
    }
    msdu_status status = msdu__stages_check(question, &q);
    status = status == MSDU_OK ? msdu__stages_check_batch(&q) : status;
    if (status == MSDU_OK) {
        status = q.micro_batches > 0 ? plan_once(&q, q.micro_batches, &made) : plan_best(&q, &made);
    }
    if (status == MSDU_OK) {
        *plan_out = &made->plan;
    }
    return status;
}

void msdu_stages_free(msdu_stages *plan)
{
    msdu__stages_unbuild((msdu__stages_made *)plan);
}

/* --- a given order --- */

static msdu_status check_plan(const msdu_stages_question *q, const msdu_stages *plan,
                              msdu_stages *out)
{
    memset(out, 0, sizeof(*out));
    if (plan == NULL || plan->size == 0) {
        return msdu__fail(MSDU_ERR_INVALID, "plan is NULL, or its size is 0: use MSDU_STAGES_INIT");
    }
    memcpy(out, plan, plan->size < sizeof(*out) ? plan->size : sizeof(*out));
    if (out->stages == NULL || out->actions == NULL || out->rank_begin == NULL) {
        return msdu__fail(MSDU_ERR_INVALID, "stages: the plan lacks stages, actions or rank_begin");
    }
    if (q->micro_batches != 0 && q->micro_batches != out->micro_batches) {
        return msdu__fail(MSDU_ERR_INVALID, "stages: the plan has %u micro-batches, not %u",
                          out->micro_batches, q->micro_batches);
    }
    return msdu__stages_check_range("micro_batches of the plan", out->micro_batches, 1,
                                    MSDU_STAGES_MICRO_MAX);
}

static msdu_status explain_given(msdu__given_outcome outcome, uint32_t action)
{
    switch (outcome) {
    case MSDU__GIVEN_OK:
        return MSDU_OK;
    case MSDU__GIVEN_SHORT:
        return msdu__fail(MSDU_ERR_NO_MEMORY, "stages: out of memory");
    case MSDU__GIVEN_LAYOUT:
        return msdu__fail(MSDU_ERR_INVALID, "stages: the plan's stages do not cover the layers in "
                                            "order, or lack a device or rank");
    case MSDU__GIVEN_LINK:
        return msdu__fail(MSDU_ERR_INVALID, "stages: neighbors of the plan have no link");
    case MSDU__GIVEN_ACTION:
        return msdu__fail(MSDU_ERR_INVALID,
                          "stages: action %u of the plan is repeated, too early or of another "
                          "rank; the number of actions means one is missing",
                          action);
    case MSDU__GIVEN_FOREVER:
        break;
    }
    return msdu__fail(MSDU_ERR_INVALID, "stages: ranks of the plan wait for each other");
}

msdu_status msdu_stages_time(const msdu_stages_question *question, const msdu_stages *plan,
                             double *step_ns_out)
{
    msdu_stages_question q;
    msdu_stages given;
    msdu__stages_model model;
    msdu__stages_memory memory = {.count = 0};
    uint32_t action = 0;
    if (step_ns_out == NULL) {
        return msdu__fail(MSDU_ERR_INVALID, "step_ns_out is NULL");
    }
    msdu_status status = msdu__stages_check(question, &q);
    status = status == MSDU_OK ? check_plan(&q, plan, &given) : status;
    if (status != MSDU_OK) {
        return status;
    }
    if (!msdu__stages_model_make(&q, given.micro_batches, &memory, &model)) {
        status = msdu__fail(MSDU_ERR_NO_MEMORY, "stages: out of memory");
    } else {
        msdu__given_outcome outcome = msdu__given_time(&model, &given, step_ns_out, &action);
        status = explain_given(outcome, action);
    }
    msdu__stages_give_back(&memory);
    return status;
}
