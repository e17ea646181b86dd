/* SPDX-License-Identifier: Apache-2.0 */
/*
 * States of format 4, in format4/, which libmsdu 0.2.0 wrote: today's library goes on from them to
 * the bits that 0.2.0 went on to. But for the third, whose format was "ternary": levels of int2 are
 * fitted in fewer iterations since 0.3, so its result is today's.
 *
 * This file made them: built in a checkout of commit c233642 with -DWRITE_STATES, with its
 * test/{state_kit,ranks,ranks_model,ranks_place,half,suite}.c, -lmsdu and -lcheck, and run with
 * CK_FORK=no, it writes the states into the present folder and prints the lines of results[].
 */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef WRITE_STATES
#include "api/context.h"
#include "checkpoint/state.h"
#endif
#include "state_kit.h"
#include "suite.h"

#define RANKS       2
#define AT          18
#define STEPS       30 /* the mean that waits at AT is applied, and two more are taken */
#define STATE_BYTES 65536

static const ranks_tensor model[] = {{.count = 1}, {.count = 7}, {.count = 16}, {.count = 24}};

static const char *const names[] = {"gradient", "parameter", "accumulated"};
#define JOBS 3

static ranks_job job_of(int index)
{
    static const char *const overlaps[JOBS] = {"backward", "delayed", "blocking"};
    static const char *const wires[JOBS] = {"int4", "int4", "ternary"};
    ranks_job job = kit_job(names[index], overlaps[index]);
    job.ranks = RANKS;
    job.steps = STEPS;
    job.tensors = model;
    job.tensor_count = sizeof(model) / sizeof(model[0]);
    job.config.slice_bytes = 64;
    job.config.fuse_bytes = 40;
    job.config.wire_block = 16;
    job.config.wire = wires[index];
    job.config.correct = index == 1 ? "outer,delayed" : NULL;
    return job;
}

/* Of all ranks' parameters in all steps from AT on. */
static uint64_t hash_run(const ranks_run *run)
{
    uint64_t hash = 0xcbf29ce484222325U;
    for (int rank = 0; rank < RANKS; rank++) {
        const ranks_self *self = &run->selves[rank];
        for (uint64_t i = AT * self->elements; i < (STEPS + 1) * self->elements; i++) {
            uint64_t bits = 0;
            memcpy(&bits, &self->history[i], sizeof(bits));
            hash = (hash ^ bits) * 0x100000001b3U;
            hash ^= hash >> 29;
        }
    }
    return hash;
}

static FILE *open_state(const char *folder, int index, int rank, const char *mode)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/%s.%d", folder, names[index], rank);
    FILE *file = fopen(path, mode);
    ck_assert_msg(file != NULL, "%s", path);
    return file;
}

#ifdef WRITE_STATES

START_TEST(states)
{
    ranks_run run;
    kit_save save;
    ranks_job job = job_of(_i);
    kit_interrupt(&job, AT, &save);
    ck_assert(kit_resume(&job, AT, &save, &run));
    for (int rank = 0; rank < RANKS; rank++) {
        const kit_rank *of = &save.rank[rank];
        FILE *file = open_state(".", _i, rank, "wb");
        ck_assert_uint_eq(fwrite(of->state, 1, of->bytes, file), of->bytes);
        (void)fclose(file);
        ck_assert_msg(run.selves[rank].status == MSDU_OK, "%s", run.selves[rank].text);
    }
    printf("    0x%016" PRIx64 ", /* %s%s */\n", hash_run(&run), names[_i],
           save.rank[0].is_pending ? ", a mean waits" : "");
}
END_TEST

#else

static const uint64_t results[JOBS] = {
    0x2ca5151e2086b4be, /* gradient */
    0xe7590967e6dbb599, /* parameter, a mean waits */
    0x7d686131b41f1ae8, /* accumulated */
};

/* What every rank has after AT steps, but with the state that 0.2.0 had. */
static void take_states(const ranks_job *job, int index, kit_save *save)
{
    kit_interrupt(job, AT, save);
    for (int rank = 0; rank < RANKS; rank++) {
        kit_rank *to = &save->rank[rank];
        FILE *file = open_state(FORMAT4_FOLDER, index, rank, "rb");
        free(to->state);
        to->state = calloc(STATE_BYTES, 1);
        ck_assert_ptr_nonnull(to->state);
        to->bytes = fread(to->state, 1, STATE_BYTES, file);
        (void)fclose(file);
    }
}

/* The messages of the mean that waits: each number has its place, new ones are not told. */
static void look_at_messages(ranks_self *self, int step)
{
    const msdu__control *of = self->ctx->engine.fragments[0].control.of;
    bool is_well = step != AT || self->ctx->caller.schedules[0].is_pending;
    for (int rank = 0; step == AT && rank < RANKS; rank++) {
        is_well = is_well && of[rank].queued_ns == 0 && of[rank].lr == 0.05 &&
                  of[rank].weight == 1 && of[rank].hash[0] == 0 && of[rank].hash[1] == 0;
    }
    if (!is_well) {
        self->status = MSDU_ERR_STATE;
        (void)snprintf(self->text, sizeof(self->text), "rank %d: the messages", self->rank);
    }
}

START_TEST(go_on_to_the_same_bits)
{
    ranks_run run;
    kit_save save;
    ranks_job job = job_of(_i);
    take_states(&job, _i, &save);
    job.stepped = _i == 1 ? look_at_messages : NULL;
    ck_assert(kit_resume(&job, AT, &save, &run));
    int failed = ranks_failed(&run, RANKS);
    ck_assert_msg(failed < 0, "%s", run.selves[failed < 0 ? 0 : failed].text);
    ck_assert_uint_eq(hash_run(&run), results[_i]);
    kit_free(&save);
    ranks_free(&run);
}
END_TEST

/* --- settings that came, went or changed their names --- */

typedef struct edit {
    const char *line; /* of the state's text */
    const char *now;  /* instead */
    const char *why;  /* it is refused; NULL: it is not */
} edit;

static const edit edits[] = {
    {"wire_rounding nearest\n", "wire_rounding stochastic\n",
     "saved with 'wire_rounding stochastic', which is gone since 0.3: values are always rounded"},
    {"wire_warmup auto\n", "wire_warmup float32\n",
     "saved with 'wire_warmup float32', which is gone since 0.3: the first warmup_steps"},
    {"wire_rounding nearest\n", "", NULL},
    {"target_overhead 0.029999999999999999\n", "", NULL}, /* as if it were new */
    {"interval_steps 5\n", "",
     "this context has 'interval_steps 5', of which the version that saved the state knew nothing"},
    {"interval_steps 5\n", "interval_steps 6\n",
     "saved with 'interval_steps 6', this context has 'interval_steps 5'"},
    {"wire_warmup auto\n", "wire_warmap auto\n", "saved with 'wire_warmap auto', this context has"},
};
#define EDITS (int)(sizeof(edits) / sizeof(edits[0]))

/* In the frame: bytes of all of it, and of the text behind the frame. */
static void edit_text(const edit *how, kit_rank *of)
{
    char *text = (char *)of->state + 64;
    char *at = strstr(text, how->line);
    ck_assert_msg(at != NULL, "no %s", how->line);
    size_t old_bytes = strlen(how->line);
    size_t new_bytes = strlen(how->now);
    size_t behind = of->bytes - (size_t)(at + old_bytes - (char *)of->state);
    uint64_t text_bytes = 0;
    memcpy(&text_bytes, of->state + 56, sizeof(text_bytes));
    text_bytes += new_bytes - old_bytes;
    memmove(at + new_bytes, at + old_bytes, behind);
    memcpy(at, how->now, new_bytes);
    of->bytes += new_bytes - old_bytes;
    memcpy(of->state + 16, &(uint64_t){of->bytes}, sizeof(uint64_t));
    memcpy(of->state + 56, &text_bytes, sizeof(text_bytes));
    msdu__state_seal(of->state, of->bytes);
}

START_TEST(texts_of_other_versions)
{
    ranks_run run;
    kit_save save;
    ranks_job job = job_of(0);
    take_states(&job, 0, &save);
    for (int rank = 0; rank < RANKS; rank++) {
        edit_text(&edits[_i], &save.rank[rank]);
    }
    ck_assert(kit_resume(&job, AT, &save, &run));
    for (int rank = 0; rank < RANKS; rank++) {
        const ranks_self *self = &run.selves[rank];
        bool is_refused = edits[_i].why != NULL;
        ck_assert_msg(self->status == (is_refused ? MSDU_ERR_MISMATCH : MSDU_OK), "%s", self->text);
        ck_assert_msg(!is_refused || strstr(self->text, edits[_i].why) != NULL, "%s", self->text);
    }
    kit_free(&save);
    ranks_free(&run);
}
END_TEST

#endif

int main(void)
{
    Suite *suite = suite_create("state_format4");
    TCase *tcase = suite_case(suite, "state_format4", 60, NULL, NULL);
#ifdef WRITE_STATES
    tcase_add_loop_test(tcase, states, 0, JOBS);
#else
    tcase_add_loop_test(tcase, go_on_to_the_same_bits, 0, JOBS);
    tcase_add_loop_test(tcase, texts_of_other_versions, 0, EDITS);
#endif
    return suite_run(suite);
}
