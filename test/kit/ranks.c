/* SPDX-License-Identifier: Apache-2.0 */
/* The toy trainer: threads, memory, and the calls of a training step in several styles. */
#include "ranks.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/context.h"
#include "pause.h"
#include "ranks_place.h"

#define ANNOUNCERS 3
#define PART_MS    20000

/* --- one rank --- */

static bool is_ok(ranks_self *self, msdu_status status)
{
    if (status == MSDU_OK) {
        return true;
    }
    if (self->status == MSDU_OK) {
        self->status = status;
        snprintf(self->text, sizeof(self->text), "%s", msdu_last_error());
    }
    return false;
}

uint64_t ranks_elements(const ranks_job *job)
{
    uint64_t elements = 0;
    for (uint32_t t = 0; t < job->tensor_count; t++) {
        elements += job->tensors[t].count;
    }
    return elements;
}

const double *ranks_row(const ranks_self *self, int step)
{
    return self->history + (uint64_t)step * self->elements;
}

static void record(ranks_self *self, int step)
{
    double *out = self->history + (uint64_t)step * self->elements;
    for (uint32_t t = 0; t < self->job->tensor_count; t++) {
        const ranks_tensor *tensor = &self->job->tensors[t];
        for (uint64_t i = 0; i < tensor->count; i++) {
            *out++ = ranks_get(tensor->dtype, self->parameter[t], i);
        }
    }
}

static uint64_t first_element(const ranks_job *job, uint32_t tensor)
{
    uint64_t at = 0;
    for (uint32_t t = 0; t < tensor; t++) {
        at += job->tensors[t].count;
    }
    return at;
}

static void compute_gradient(ranks_self *self, int step, uint32_t t)
{
    const ranks_job *job = self->job;
    const ranks_tensor *tensor = &job->tensors[t];
    uint64_t first = first_element(job, t);
    for (uint64_t i = 0; i < tensor->count; i++) {
        double w = ranks_get(tensor->dtype, self->parameter[t], i);
        ranks_put(tensor->dtype, self->gradient[t], i,
                  ranks_gradient(job, self->rank, step, tensor->dtype, first + i, w));
    }
}

static void update_state(ranks_self *self, int step, uint32_t t)
{
    const ranks_tensor *tensor = &self->job->tensors[t];
    uint64_t first = first_element(self->job, t);
    for (uint64_t i = 0; i < tensor->count; i++) {
        double state = ranks_get(tensor->dtype, self->parameter[t], i);
        ranks_put(tensor->dtype, self->parameter[t], i,
                  ranks_state(self->rank, step, tensor->dtype, first + i, state));
    }
}

static void update(ranks_self *self, int step, uint32_t t)
{
    const ranks_job *job = self->job;
    const ranks_tensor *tensor = &job->tensors[t];
    uint64_t first = first_element(job, t);
    if (tensor->role != MSDU_ROLE_MODEL) {
        update_state(self, step, t);
        return;
    }
    for (uint64_t i = 0; i < tensor->count; i++) {
        double w = ranks_get(tensor->dtype, self->parameter[t], i);
        double g = ranks_get(tensor->dtype, self->gradient[t], i);
        ranks_put(tensor->dtype, self->parameter[t], i,
                  ranks_update(job, step, tensor->dtype, w, g, &self->velocity[first + i]));
    }
}

/* --- backward passes --- */

typedef struct announcer {
    ranks_self *self;
    uint32_t first; /* of every ANNOUNCERS-th tensor in a shuffled order */
    const uint32_t *order;
    msdu_status status;
    char text[512];
} announcer;

static void *announce(void *argument)
{
    announcer *a = argument;
    for (uint32_t i = a->first; i < a->self->job->tensor_count; i += ANNOUNCERS) {
        msdu_status status = msdu_tensor_ready(a->self->ctx, a->order[i], MSDU_GRADIENT);
        if (status != MSDU_OK && a->status == MSDU_OK) {
            a->status = status;
            snprintf(a->text, sizeof(a->text), "%s", msdu_last_error());
        }
    }
    return NULL;
}

static bool announce_from_threads(ranks_self *self, int step)
{
    announcer announcers[ANNOUNCERS];
    pthread_t threads[ANNOUNCERS];
    uint32_t order[RANKS_TENSORS_MOST] = {0};
    uint32_t count = self->job->tensor_count;
    uint64_t random = 77U + (uint64_t)self->rank * 1000U + (uint64_t)step;
    for (uint32_t i = 0; i < count; i++) {
        random = random * 6364136223846793005U + 1442695040888963407U;
        uint32_t other = (uint32_t)((random >> 33) % (i + 1));
        order[i] = order[other];
        order[other] = i;
    }
    for (uint32_t i = 0; i < ANNOUNCERS; i++) {
        announcers[i] = (announcer){.self = self, .first = i, .order = order};
        pthread_create(&threads[i], NULL, announce, &announcers[i]);
    }
    for (uint32_t i = 0; i < ANNOUNCERS; i++) {
        pthread_join(threads[i], NULL);
        if (announcers[i].status != MSDU_OK && self->status == MSDU_OK) {
            self->status = announcers[i].status;
            snprintf(self->text, sizeof(self->text), "%s", announcers[i].text);
        }
    }
    return self->status == MSDU_OK;
}

/* Every other one by looking at it, as MPI_Test() does. */
static bool wait_alone(ranks_self *self, uint32_t t)
{
    const unsigned what = MSDU_GRADIENT | MSDU_ALONE | (t % 2 == 0 ? 0U : MSDU_NOW);
    msdu_status status = msdu_tensor_wait(self->ctx, t, (msdu_what)what);
    while (status == MSDU_IN_PROGRESS && t % 2 != 0) {
        pause_us(100);
        status = msdu_tensor_wait(self->ctx, t, (msdu_what)what);
    }
    return is_ok(self, status);
}

static bool backward(ranks_self *self, int step)
{
    const ranks_job *job = self->job;
    bool is_alone = job->style == RANKS_ALONE;
    for (uint32_t t = job->tensor_count; t-- > 0;) {
        if (job->tensors[t].role != MSDU_ROLE_MODEL) {
            continue;
        }
        compute_gradient(self, step, t);
        if (job->computed != NULL) {
            job->computed(self, step, t);
        }
        bool is_told = job->style == RANKS_IN_ORDER || job->style == RANKS_DEFERRED || is_alone;
        if (is_told && !is_ok(self, msdu_tensor_ready(self->ctx, t, MSDU_GRADIENT))) {
            return false;
        }
        if (is_alone && !wait_alone(self, t)) {
            return false;
        }
    }
    return job->style != RANKS_THREADS || announce_from_threads(self, step);
}

/* --- steps --- */

static bool is_all_nan(const ranks_self *self, uint32_t t)
{
    const ranks_tensor *tensor = &self->job->tensors[t];
    bool is_nan = true;
    for (uint64_t i = 0; i < tensor->count; i++) {
        is_nan = is_nan && isnan(ranks_get(tensor->dtype, self->gradient[t], i));
    }
    return is_nan;
}

/* The gradients of this step were refused: they must be, of every tensor, and be NaN. */
static bool skip_update(ranks_self *self)
{
    const ranks_job *job = self->job;
    self->refused++;
    snprintf(self->text, sizeof(self->text), "%s", msdu_last_error());
    for (uint32_t t = 0; t < job->tensor_count; t++) {
        bool is_model = job->tensors[t].role == MSDU_ROLE_MODEL;
        msdu_status wanted = is_model ? MSDU_ERR_NOT_FINITE : MSDU_OK;
        if (msdu_tensor_wait(self->ctx, t, MSDU_GRADIENT) != wanted ||
            (is_model && !is_all_nan(self, t))) {
            self->status = MSDU_ERR_STATE;
            snprintf(self->text, sizeof(self->text), "tensor %u of a refused step is usable", t);
            return false;
        }
    }
    return true;
}

static bool has_bad_gradient(const ranks_self *self)
{
    const ranks_job *job = self->job;
    bool is_bad = false;
    for (uint32_t t = 0; t < job->tensor_count; t++) {
        for (uint64_t i = 0; i < job->tensors[t].count; i++) {
            double g = ranks_get(job->tensors[t].dtype, self->gradient[t], i);
            is_bad = is_bad || !isfinite(g);
        }
    }
    return is_bad;
}

/* As a trainer that scales its loss: nothing is updated before all gradients were looked at. */
static bool is_looked_at(ranks_self *self, int step, bool *is_bad_out)
{
    if (!self->job->looks) {
        return true;
    }
    if (!is_ok(self, msdu_tensor_wait(self->ctx, MSDU_ALL_TENSORS, MSDU_GRADIENT))) {
        return false;
    }
    *is_bad_out = has_bad_gradient(self);
    self->refused += *is_bad_out ? 1 : 0;
    self->refused_at = *is_bad_out ? step : self->refused_at;
    return true;
}

static bool optimize(ranks_self *self, int step)
{
    const ranks_job *job = self->job;
    uint32_t first = job->style == RANKS_SILENT ? MSDU_ALL_TENSORS : 0;
    bool is_bad = false;
    if (job->missing == step + 1) {
        return true;
    }
    if (!is_looked_at(self, step, &is_bad)) {
        return false;
    }
    if (is_bad) {
        return true;
    }
    msdu_status status = msdu_tensor_wait(self->ctx, first, MSDU_GRADIENT);
    if (status == MSDU_ERR_NOT_FINITE && job->goes_on) {
        return skip_update(self);
    }
    for (uint32_t t = 0; t < job->tensor_count; t++) {
        if (t > 0 && job->style != RANKS_SILENT) {
            status = msdu_tensor_wait(self->ctx, t, MSDU_GRADIENT);
        }
        if (!is_ok(self, status)) {
            return false;
        }
        update(self, step, t);
        bool is_told = job->style != RANKS_SILENT && job->style != RANKS_DEFERRED;
        if (is_told && !is_ok(self, msdu_tensor_ready(self->ctx, t, MSDU_PARAMETER))) {
            return false;
        }
    }
    return true;
}

static bool forward(ranks_self *self, int step)
{
    const ranks_job *job = self->job;
    for (uint32_t t = 0; t < job->tensor_count && job->style != RANKS_SILENT; t++) {
        if (!is_ok(self, msdu_tensor_wait(self->ctx, t, MSDU_PARAMETER))) {
            return false;
        }
    }
    if (job->style == RANKS_SILENT &&
        !is_ok(self, msdu_tensor_wait(self->ctx, MSDU_ALL_TENSORS, MSDU_PARAMETER))) {
        return false;
    }
    if (job->style == RANKS_DEFERRED && step > job->first_step && !optimize(self, step - 1)) {
        return false;
    }
    /* resumed: the optimizer ran before the state was taken, but forward passes wait all the same
     */
    if (job->style == RANKS_DEFERRED && step > 0 && step == job->first_step &&
        !is_ok(self, msdu_tensor_wait(self->ctx, MSDU_ALL_TENSORS, MSDU_GRADIENT))) {
        return false;
    }
    record(self, step);
    return true;
}

static bool take_step(ranks_self *self, int step)
{
    const ranks_job *job = self->job;
    if (!forward(self, step)) {
        return false;
    }
    if (job->missing == step + 1) {
        return true;
    }
    if (job->needs_lr && !is_ok(self, msdu_set_lr(self->ctx, ranks_lr(job, step)))) {
        return false;
    }
    if (job->weight_at != NULL &&
        !is_ok(self, msdu_set_weight(self->ctx, ranks_weight(job, self->rank, step)))) {
        return false;
    }
    if (job->syncs_at != NULL && job->syncs_at(step) && !is_ok(self, msdu_synchronize(self->ctx))) {
        return false;
    }
    if (job->stepped != NULL) {
        job->stepped(self, step);
    }
    return backward(self, step) && (job->style == RANKS_DEFERRED || optimize(self, step)) &&
           is_ok(self, msdu_step(self->ctx));
}

static bool add_tensors(ranks_self *self)
{
    const ranks_job *job = self->job;
    for (uint32_t t = 0; t < job->tensor_count; t++) {
        const ranks_tensor *tensor = &job->tensors[t];
        bool is_model = tensor->role == MSDU_ROLE_MODEL;
        char name[32];
        snprintf(name, sizeof(name), "tensor%u", t);
        msdu_tensor_desc desc = MSDU_TENSOR_INIT;
        desc.name = name;
        desc.parameter = job->hides_parameters && is_model ? NULL : self->parameter[t];
        desc.gradient = job->hides_gradients || !is_model ? NULL : self->gradient[t];
        desc.count = tensor->count;
        desc.dtype = tensor->dtype;
        desc.role = tensor->role;
        desc.priority = tensor->priority;
        desc.place = ranks_place();
        if (job->described != NULL) {
            job->described(self, t, &desc);
        }
        if (!is_ok(self, msdu_tensor_add(self->ctx, &desc, NULL))) {
            return false;
        }
    }
    return true;
}

/* Which fragment every element is in, as the library cut it. */
static void note_fragments(ranks_self *self)
{
    const msdu_ctx *p = self->ctx;
    for (uint64_t i = 0; i < self->elements; i++) {
        self->fragment[i] = -1;
    }
    for (uint32_t s = 0; s < p->model.slicing.slice_count; s++) {
        const msdu__slice *slice = &p->model.slicing.slices[s];
        for (uint32_t k = 0; k < slice->segments; k++) {
            const msdu__segment *segment = &p->model.slicing.segments[slice->first_segment + k];
            uint64_t first = first_element(self->job, segment->tensor) + segment->offset;
            for (uint64_t i = 0; i < segment->count; i++) {
                self->fragment[first + i] = (int)slice->fragment;
            }
        }
    }
}

static bool take_steps(ranks_self *self)
{
    const ranks_job *job = self->job;
    for (int step = job->first_step; step < job->steps && self->status == MSDU_OK; step++) {
        if (!take_step(self, step)) {
            return false;
        }
    }
    return true;
}

/* Each with as many steps as this rank has batches. */
static bool take_epochs(ranks_self *self)
{
    const ranks_job *job = self->job;
    for (int epoch = 0; epoch < job->epochs; epoch++) {
        for (int batch = 0; batch < job->batches(self->rank, epoch); batch++) {
            if (!take_step(self, (int)self->ctx->caller.step)) {
                return false;
            }
        }
        if (!is_ok(self, msdu_join(self->ctx))) {
            return false;
        }
    }
    return true;
}

static bool train(ranks_self *self)
{
    const ranks_job *job = self->job;
    if (job->created != NULL) {
        job->created(self);
    }
    if (!add_tensors(self) || !is_ok(self, msdu_start(self->ctx))) {
        return false;
    }
    note_fragments(self);
    if (job->started != NULL) {
        job->started(self);
    }
    if (job->epochs > 0 ? !take_epochs(self) : !take_steps(self)) {
        return false;
    }
    bool is_deferred = job->style == RANKS_DEFERRED && job->steps > job->first_step;
    if (is_deferred &&
        (!is_ok(self, msdu_tensor_wait(self->ctx, MSDU_ALL_TENSORS, MSDU_PARAMETER)) ||
         !optimize(self, job->steps - 1))) {
        return false;
    }
    if (job->ended != NULL) {
        job->ended(self);
    }
    bool is_well = self->status == MSDU_OK;
    bool is_finished = is_well && (job->is_unfinished || is_ok(self, msdu_finish(self->ctx)));
    record(self, job->steps);
    return is_finished;
}

/* Who leaves without msdu_finish() is lost to those who still step, so they leave together. */
static void part(ranks_self *self)
{
    bool waits = self->job->is_unfinished && self->status == MSDU_OK;
    atomic_fetch_add(self->gone, 1);
    for (int ms = 0; waits && ms < PART_MS && atomic_load(self->gone) < self->job->ranks; ms++) {
        pause_us(1000);
    }
}

static void *rank_main(void *argument)
{
    ranks_self *self = argument;
    msdu_config config = self->job->config;
    config.size = sizeof(config);
    config.ranks = self->job->ranks;
    config.rank = self->rank;
    ranks_place_config(&config, self->rendezvous);
    config.deadline_ms = config.deadline_ms > 0 ? config.deadline_ms : 30000;
    if (self->job->configured != NULL) {
        self->job->configured(self, &config);
    }
    if (is_ok(self, msdu_create(&config, &self->ctx))) {
        if (!train(self) && self->job->failed != NULL) {
            self->job->failed(self);
        }
        self->summary.size = sizeof(self->summary);
        (void)is_ok(self, msdu_summary_get(self->ctx, &self->summary));
    }
    part(self);
    msdu_destroy(self->ctx);
    self->ctx = NULL;
    return NULL;
}

/* --- all ranks --- */

static bool reserve(ranks_self *self)
{
    const ranks_job *job = self->job;
    self->elements = ranks_elements(job);
    self->velocity = calloc(self->elements + 1, sizeof(double));
    self->history = calloc(((size_t)job->steps + 1) * self->elements + 1, sizeof(double));
    self->fragment = calloc(self->elements + 1, sizeof(int));
    bool is_there = self->velocity != NULL && self->history != NULL && self->fragment != NULL;
    uint64_t at = 0;
    for (uint64_t i = 0; is_there && i < self->elements; i++) {
        self->velocity[i] = (double)NAN;
    }
    for (uint32_t t = 0; t < job->tensor_count; t++) {
        const ranks_tensor *tensor = &job->tensors[t];
        assert(tensor->count > 0);
        self->parameter[t] = ranks_place_take(tensor->count * 8);
        self->gradient[t] = ranks_place_take(tensor->count * 8);
        is_there = is_there && self->parameter[t] != NULL && self->gradient[t] != NULL;
        for (uint64_t i = 0; is_there && i < tensor->count; i++) {
            ranks_put(tensor->dtype, self->parameter[t], i,
                      ranks_initial(job, self->rank, tensor->dtype, at++));
        }
    }
    return is_there;
}

bool ranks_go(const ranks_job *job, ranks_run *run)
{
    pthread_t threads[RANKS_MOST];
    int started = 0;
    bool is_well = true;
    *run = (ranks_run){0};
    ranks_place_begin(run->rendezvous, sizeof(run->rendezvous));
    for (int rank = 0; rank < job->ranks; rank++) {
        run->selves[rank].job = job;
        run->selves[rank].rank = rank;
        run->selves[rank].rendezvous = run->rendezvous;
        run->selves[rank].gone = &run->gone;
        is_well = is_well && reserve(&run->selves[rank]);
    }
    while (is_well && started < job->ranks) {
        is_well = pthread_create(&threads[started], NULL, rank_main, &run->selves[started]) == 0;
        started += is_well ? 1 : 0;
    }
    for (int rank = 0; rank < started; rank++) {
        pthread_join(threads[rank], NULL);
    }
    ranks_place_end(run->rendezvous);
    return is_well;
}

void ranks_free(ranks_run *run)
{
    for (int rank = 0; rank < RANKS_MOST; rank++) {
        ranks_self *self = &run->selves[rank];
        free(self->velocity);
        free(self->history);
        free(self->fragment);
        for (uint32_t t = 0; t < RANKS_TENSORS_MOST; t++) {
            ranks_place_give(self->parameter[t]);
            ranks_place_give(self->gradient[t]);
        }
    }
}

int ranks_failed(const ranks_run *run, int ranks)
{
    for (int rank = 0; rank < ranks; rank++) {
        if (run->selves[rank].status != MSDU_OK) {
            return rank;
        }
    }
    return -1;
}
