/* SPDX-License-Identifier: Apache-2.0 */
/* Interrupting and resuming the toy training. */
#include "state_kit.h"

#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/context.h"

static const ranks_tensor model[] = {
    {.count = 1}, {.count = 7}, {.count = 256}, {.count = 600}, {.count = 900},
};

ranks_job kit_job(const char *domain, const char *overlap)
{
    return (ranks_job){
        .ranks = 3,
        .steps = KIT_STEPS,
        .tensors = model,
        .tensor_count = sizeof(model) / sizeof(model[0]),
        .config = {.domain = domain,
                   .overlap = overlap,
                   .interval = "fixed",
                   .interval_steps = 5,
                   .delay_steps = 3,
                   .fragments = 3,
                   .wire = "float32",
                   .slice_bytes = 2048,
                   .fuse_bytes = 1200,
                   .wire_block = 64,
                   .warmup_steps = 6,
                   .optimizer = "sgd",
                   .lr = 0.05,
                   .momentum = 0.9},
    };
}

static void note(ranks_self *self, msdu_status status)
{
    if (status != MSDU_OK && self->status == MSDU_OK) {
        self->status = status;
        snprintf(self->text, sizeof(self->text), "%s", msdu_last_error());
    }
}

static void *copy_of(const void *data, uint64_t bytes)
{
    void *copy = malloc(bytes > 0 ? bytes : 1);
    if (copy != NULL) {
        memcpy(copy, data, bytes);
    }
    return copy;
}

static void save_rank(ranks_self *self, kit_save *save)
{
    kit_rank *out = &save->rank[self->rank];
    const msdu_ctx *p = self->ctx;
    size_t bytes = 0;
    note(self, msdu_state_get(self->ctx, NULL, 0, &out->bytes));
    out->state = malloc(out->bytes + 1);
    note(self, msdu_state_get(self->ctx, out->state + 1, out->bytes, &bytes)); /* no alignment */
    if (self->status == MSDU_OK && bytes == out->bytes) {
        memmove(out->state, out->state + 1, bytes);
    } else {
        note(self, MSDU_ERR_STATE);
    }
    out->is_local = p->caller.is_local_entered;
    for (uint32_t i = 0; i < p->model.fragment_count; i++) {
        out->is_pending = out->is_pending || p->caller.schedules[i].is_pending;
    }
    for (uint32_t t = 0; t < self->job->tensor_count; t++) {
        out->parameter[t] = copy_of(self->parameter[t], self->job->tensors[t].count * 8);
    }
    out->velocity = copy_of(self->velocity, self->elements * sizeof(double));
    pthread_barrier_wait(save->barrier);
}

void kit_load(ranks_self *self, const kit_save *save)
{
    const kit_rank *in = &save->rank[self->rank];
    note(self, msdu_state_set(self->ctx, in->state, in->bytes));
    for (uint32_t t = 0; t < self->job->tensor_count; t++) {
        memcpy(self->parameter[t], in->parameter[t], self->job->tensors[t].count * 8);
    }
    memcpy(self->velocity, in->velocity, self->elements * sizeof(double));
}

/* `from` is a save of step job->first_step, NULL: from the start. */
typedef struct kit_between {
    const kit_save *from;
    kit_save *to;
} kit_between;

static void load_between(ranks_self *self)
{
    const kit_between *between = self->job->user;
    if (between->from != NULL) {
        kit_load(self, between->from);
    }
}

static void save_between(ranks_self *self)
{
    const kit_between *between = self->job->user;
    save_rank(self, between->to);
}

static void go_between(const ranks_job *job, const kit_save *from, int at, kit_save *to)
{
    ranks_run run;
    pthread_barrier_t barrier;
    kit_between between = {.from = from, .to = to};
    ranks_job part = *job;
    *to = (kit_save){.ranks = job->ranks, .barrier = &barrier};
    pthread_barrier_init(&barrier, NULL, (unsigned)job->ranks);
    part.steps = at;
    part.is_unfinished = true;
    part.started = load_between;
    part.ended = save_between;
    part.user = &between;
    ck_assert(ranks_go(&part, &run));
    pthread_barrier_destroy(&barrier);
    int failed = ranks_failed(&run, job->ranks);
    ck_assert_msg(failed < 0, "rank %d: %s", failed, run.selves[failed < 0 ? 0 : failed].text);
    ranks_free(&run);
}

void kit_interrupt(const ranks_job *job, int at, kit_save *save)
{
    go_between(job, NULL, at, save);
}

void kit_interrupt_again(const ranks_job *job, int from, int at, kit_save *save)
{
    kit_save next;
    ranks_job part = *job;
    part.first_step = from;
    go_between(&part, save, at, &next);
    kit_free(save);
    *save = next;
}

void kit_free(kit_save *save)
{
    for (int rank = 0; rank < save->ranks; rank++) {
        free(save->rank[rank].state);
        free(save->rank[rank].velocity);
        for (uint32_t t = 0; t < RANKS_TENSORS_MOST; t++) {
            free(save->rank[rank].parameter[t]);
        }
    }
}

bool kit_resume(const ranks_job *job, int at, const kit_save *save, ranks_run *run)
{
    kit_between between = {.from = save};
    ranks_job part = *job;
    part.first_step = at;
    part.started = load_between;
    part.user = &between;
    bool is_well = ranks_go(&part, run);
    for (int rank = 0; rank < job->ranks; rank++) {
        run->selves[rank].job = job;
    }
    return is_well;
}

void kit_check_equal(const ranks_job *job, int first, const ranks_run *wanted, const ranks_run *run)
{
    for (int rank = 0; rank < job->ranks; rank++) {
        const ranks_self *a = &wanted->selves[rank];
        const ranks_self *b = &run->selves[rank];
        ck_assert_msg(a->status == MSDU_OK, "rank %d: %s", rank, a->text);
        ck_assert_msg(b->status == MSDU_OK, "rank %d: %s", rank, b->text);
        for (int step = first; step <= job->steps; step++) {
            for (uint64_t i = 0; i < a->elements; i++) {
                double x = ranks_row(a, step)[i];
                double y = ranks_row(b, step)[i];
                if (memcmp(&x, &y, sizeof(x)) != 0) { /* each assertion writes to Check's file */
                    ck_abort_msg("rank %d, step %d, element %llu: %.17g, resumed %.17g", rank, step,
                                 (unsigned long long)i, x, y);
                }
            }
        }
    }
}

static void check_counters(const ranks_run *wanted, const ranks_run *run, int ranks)
{
    for (int rank = 0; rank < ranks; rank++) {
        const msdu_summary *a = &wanted->selves[rank].summary;
        const msdu_summary *b = &run->selves[rank].summary;
        ck_assert_uint_eq(a->steps, b->steps);
        ck_assert_uint_eq(a->rounds, b->rounds);
        ck_assert_uint_eq(a->bytes_plain, b->bytes_plain);
        ck_assert_str_eq(a->domain, b->domain);
        ck_assert_str_eq(a->wire, b->wire);
    }
}

int kit_check_resume(const ranks_job *job, int first, int last, int stride)
{
    ranks_run whole;
    int pending = 0;
    ck_assert(ranks_go(job, &whole));
    for (int at = first; at <= last; at += stride) {
        ranks_run resumed;
        kit_save save;
        kit_interrupt(job, at, &save);
        pending += save.rank[0].is_pending ? 1 : 0;
        ck_assert(kit_resume(job, at, &save, &resumed));
        kit_check_equal(job, at, &whole, &resumed);
        check_counters(&whole, &resumed, job->ranks);
        kit_free(&save);
        ranks_free(&resumed);
    }
    ranks_free(&whole);
    return pending;
}
