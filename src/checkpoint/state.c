/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Synchronization state as bytes: the frame around it and the ranks' agreement to take it. A state
 * is checked completely, and by all ranks, before any of it is used.
 */
#include "state.h"

#include "core/blocking.h"
#include "core/kernels.h"
#include "core/levels.h"
#include "core/progress.h"
#include "core/tune.h"

#include <stdlib.h>
#include <string.h>

#define MAGIC            "msdustat"
#define MAGIC_BYTES      8
#define VERSION_BYTES    16
#define CHECKSUM_AT      24 /* covers everything behind it */
#define FRAME_BYTES      64
#define SLICE_BYTES_MOST (1ULL << 30) /* as the setting has it */

/* What stands in front; a format that is not ours may differ behind `version`. */
typedef struct frame {
    char magic[MAGIC_BYTES];
    uint64_t format;
    uint64_t bytes;
    uint64_t checksum;
    char version[VERSION_BYTES]; /* of the library that wrote it */
    uint64_t rank;
    uint64_t text_bytes; /* settings and tensors, as text */
} frame;

/* One call of msdu_state_get or msdu_state_set, as the communication thread carries it out. */
struct msdu__state_call {
    msdu__caller *caller;
    bool is_set;
    const void *in;
    void *out; /* NULL: only measure */
    uint64_t bytes;
    uint64_t needed;
    msdu_status status;
    char text[MSDU__TEXT_BYTES];
};

static void code_frame(msdu__serial *c, frame *f)
{
    msdu__serial_values(c, "magic", f->magic, MAGIC_BYTES, 1);
    msdu__serial_whole(c, "format", &f->format, 0, UINT64_MAX);
    msdu__serial_whole(c, "bytes", &f->bytes, 0, UINT64_MAX);
    msdu__serial_whole(c, "checksum", &f->checksum, 0, UINT64_MAX);
    msdu__serial_values(c, "version", f->version, VERSION_BYTES, 1);
    msdu__serial_whole(c, "rank", &f->rank, 0, UINT64_MAX);
    msdu__serial_whole(c, "text", &f->text_bytes, 0, UINT64_MAX);
}

void msdu__state_seal(void *data, uint64_t bytes)
{
    const uint64_t behind = CHECKSUM_AT + sizeof(uint64_t);
    uint64_t sum = msdu__serial_hash((const char *)data + behind, bytes - behind);
    msdu__serial c = {.out = data, .bytes = bytes, .at = CHECKSUM_AT};
    msdu__serial_whole(&c, "checksum", &sum, 0, UINT64_MAX);
}

/* Another version of the library may cut the same tensors in another way. */
static uint64_t hash_slicing(const msdu__caller *caller)
{
    uint64_t hash = caller->model->fragment_count;
    for (uint32_t i = 0; i < caller->model->slicing.slice_count; i++) {
        const msdu__slice *cut = &caller->model->slicing.slices[i];
        uint64_t facts[4] = {hash, cut->count, cut->fragment, cut->segments};
        for (uint32_t k = 0; k < cut->segments; k++) {
            facts[3] =
                facts[3] * 31 + caller->model->slicing.segments[cut->first_segment + k].tensor;
        }
        hash = msdu__serial_hash(facts, sizeof(facts));
    }
    return hash;
}

static msdu_status no_memory(const msdu__caller *caller)
{
    return msdu__fail(MSDU_ERR_NO_MEMORY, "rank %d: no memory for the state", caller->job->rank);
}

/* --- writing --- */

/* How the slices were cut: as measured, so it may be another than a new context's. */
static void code_tuning(msdu__serial *c, msdu__tuning *tuning)
{
    uint64_t window = tuning->window;
    uint64_t lanes = tuning->lanes;
    msdu__serial_whole(c, "slice_bytes", &tuning->slice_bytes, 1, SLICE_BYTES_MOST);
    msdu__serial_whole(c, "window", &window, 1, MSDU__WINDOW_MAX);
    msdu__serial_whole(c, "lanes", &lanes, 1, MSDU__LANES_MAX);
    tuning->window = (uint32_t)window;
    tuning->lanes = (uint32_t)lanes;
}

static void code_all(msdu__caller *caller, msdu__serial *c, frame *f, char *text,
                     msdu__image *image)
{
    uint64_t slicing = hash_slicing(caller);
    code_frame(c, f);
    msdu__serial_array(c, "text", text, f->text_bytes, 1);
    msdu__tuning tuning = caller->model->tuning;
    code_tuning(c, &tuning);
    msdu__serial_whole(c, "slicing", &slicing, 0, UINT64_MAX);
    msdu__image_code(caller->model, c, image);
    msdu__arrays_code(caller->engine, c, image);
}

static msdu_status write_state(msdu__caller *caller, struct msdu__state_call *call)
{
    msdu__image image;
    char *text = msdu__text_describe(caller);
    if (text == NULL) {
        return no_memory(caller);
    }
    frame f = {.format = MSDU__STATE_FORMAT,
               .rank = (uint64_t)caller->job->rank,
               .text_bytes = strlen(text)};
    memcpy(f.magic, MAGIC, MAGIC_BYTES);
    strncpy(f.version, msdu_version(), VERSION_BYTES - 1);
    msdu__image_take(caller, &image);
    msdu__serial measure = {.out = NULL};
    code_all(caller, &measure, &f, text, &image);
    call->needed = f.bytes = measure.at;
    if (call->out != NULL && call->bytes >= f.bytes) {
        msdu__serial writer = {.out = call->out, .bytes = f.bytes};
        code_all(caller, &writer, &f, text, &image);
        msdu__state_seal(call->out, f.bytes);
    }
    free(text);
    if (call->out != NULL && call->bytes < f.bytes) {
        return msdu__fail(
            MSDU_ERR_INVALID, "rank %d: the state has %llu bytes, there is room for %llu",
            caller->job->rank, (unsigned long long)f.bytes, (unsigned long long)call->bytes);
    }
    return MSDU_OK;
}

/* --- checking --- */

static msdu_status check_frame(const msdu__caller *caller, const struct msdu__state_call *call,
                               frame *f)
{
    msdu__serial c = {.in = call->in, .bytes = call->bytes};
    if (call->in == NULL || call->bytes < FRAME_BYTES ||
        memcmp(call->in, MAGIC, MAGIC_BYTES) != 0) {
        return msdu__fail(MSDU_ERR_INVALID, "rank %d: these %llu bytes are no state of msdu",
                          caller->job->rank, (unsigned long long)call->bytes);
    }
    code_frame(&c, f);
    f->version[VERSION_BYTES - 1] = '\0';
    if (f->format < MSDU__STATE_OLDEST || f->format > MSDU__STATE_FORMAT) {
        return msdu__fail(
            MSDU_ERR_UNSUPPORTED,
            "rank %d: the state has format %llu, this library (%s) reads formats %d to %d",
            caller->job->rank, (unsigned long long)f->format, msdu_version(), MSDU__STATE_OLDEST,
            MSDU__STATE_FORMAT);
    }
    if (f->bytes != call->bytes || f->text_bytes > call->bytes - FRAME_BYTES) {
        return msdu__fail(MSDU_ERR_INVALID, "rank %d: the state has %llu bytes, %llu were given",
                          caller->job->rank, (unsigned long long)f->bytes,
                          (unsigned long long)call->bytes);
    }
    const uint64_t behind = CHECKSUM_AT + sizeof(f->checksum);
    if (msdu__serial_hash((const char *)call->in + behind, f->bytes - behind) != f->checksum) {
        return msdu__fail(MSDU_ERR_INVALID, "rank %d: the state is damaged: its checksum is wrong",
                          caller->job->rank);
    }
    return MSDU_OK;
}

static msdu_status check_text(const msdu__caller *caller, const struct msdu__state_call *call,
                              const frame *f)
{
    const char *text = (const char *)call->in + FRAME_BYTES;
    msdu_status status = msdu__text_check(caller, text, f->text_bytes);
    if (status == MSDU_OK && f->rank != (uint64_t)caller->job->rank) {
        status = msdu__fail(MSDU_ERR_MISMATCH, "rank %d: this is the state of rank %llu",
                            caller->job->rank, (unsigned long long)f->rank);
    }
    return status;
}

/* Cut as the state is, where that may be: the rest can only be checked then. */
static msdu_status take_tuning(msdu__caller *caller, msdu__serial *c)
{
    msdu__tuning tuning = caller->model->tuning;
    code_tuning(c, &tuning);
    bool is_fit = tuning.slice_bytes >= caller->model->recut.args.slice_least &&
                  tuning.window >= caller->model->recut.args.window_least &&
                  tuning.window <= caller->model->recut.args.window_most;
    if (c->bad != NULL || !caller->model->recut.may_cut || !caller->is_gradient || !is_fit) {
        return MSDU_OK;
    }
    tuning.lanes = tuning.lanes > caller->model->recut.args.lanes_most
                       ? caller->model->recut.args.lanes_most
                       : tuning.lanes;
    bool is_other = !msdu__tuning_is_equal(tuning, caller->model->tuning);
    msdu_status status = is_other ? msdu__reslice_cut(caller->engine, tuning) : MSDU_OK;
    msdu__tune_begin(caller->engine);
    return status;
}

/* Everything behind the text. *c is left where the arrays begin. */
static msdu_status check_content(msdu__caller *caller, const frame *f, msdu__serial *c,
                                 msdu__image *image)
{
    uint64_t slicing = 0;
    c->at = FRAME_BYTES + f->text_bytes;
    c->is_dry = true;
    msdu_status cut = take_tuning(caller, c);
    if (cut != MSDU_OK) {
        return cut;
    }
    msdu__serial_whole(c, "slicing", &slicing, 0, UINT64_MAX);
    if (c->bad == NULL && slicing != hash_slicing(caller)) {
        return msdu__fail(MSDU_ERR_MISMATCH,
                          "rank %d: the state is of other slices: libmsdu %s wrote it, this is %s",
                          caller->job->rank, f->version, msdu_version());
    }
    image->format = f->format;
    msdu__image_code(caller->model, c, image);
    msdu__levels_set(caller->engine,
                     image->is_local_entered && (!image->is_clocked || caller->job->starts_local));
    msdu__serial arrays = *c;
    arrays.bad = c->bad != NULL ? c->bad : msdu__image_check(caller, image);
    msdu__arrays_code(caller->engine, &arrays, image);
    if (arrays.bad == NULL && arrays.at != arrays.bytes) {
        arrays.bad = "length";
    }
    c->is_dry = false;
    if (arrays.bad != NULL) {
        return msdu__fail(MSDU_ERR_INVALID, "rank %d: the state's %s is not possible",
                          caller->job->rank, arrays.bad);
    }
    return MSDU_OK;
}

/* --- agreement --- */

/* What a rank says about its state. */
typedef struct facts {
    uint64_t failed; /* - status of its own check */
    uint64_t at;     /* step; by the clock round, since ranks are in different steps */
    uint64_t run;
} facts;

static msdu_status compare_facts(const msdu__caller *caller, const facts *all)
{
    for (int32_t i = 0; i < caller->job->ranks; i++) {
        if (all[i].failed != 0) {
            return msdu__fail(MSDU_ERR_MISMATCH,
                              "rank %d could not take its state (%s): no rank did", i,
                              msdu_status_name((msdu_status) - (int)all[i].failed));
        }
    }
    for (int32_t i = 1; i < caller->job->ranks; i++) {
        if (all[i].at != all[0].at) {
            return msdu__fail(MSDU_ERR_MISMATCH,
                              "ranks 0 and %d disagree: rank 0 has the state of step %llu, rank %d "
                              "that of step %llu (by the clock: round)",
                              i, (unsigned long long)all[0].at, i, (unsigned long long)all[i].at);
        }
        if (all[i].run != all[0].run) {
            return msdu__fail(MSDU_ERR_MISMATCH,
                              "ranks 0 and %d disagree: their states of step %llu are of "
                              "different runs",
                              i, (unsigned long long)all[0].at);
        }
    }
    return MSDU_OK;
}

/* All ranks learn whether all of them can go on from one and the same step. A failure to find out
 * is one of the context. */
static msdu_status agree(msdu__caller *caller, const facts *own)
{
    void *all = NULL;
    msdu_status status = msdu__blocking_gather(caller->engine, own, sizeof(*own), 0,
                                               msdu__control_channel(caller->engine) + 1, &all);
    if (status != MSDU_OK) {
        msdu__handover_fail_last(caller->hand, status);
        return status;
    }
    status = compare_facts(caller, all);
    free(all);
    return status;
}

static msdu_status read_state(msdu__caller *caller, struct msdu__state_call *call)
{
    frame f = {.bytes = 0};
    msdu__image image = {0};
    msdu__serial c = {.in = call->in, .bytes = call->bytes};
    msdu__tuning tuning = caller->model->tuning;
    msdu_status status = check_frame(caller, call, &f);
    if (status == MSDU_OK) {
        status = check_text(caller, call, &f);
    }
    if (status == MSDU_OK) {
        status = check_content(caller, &f, &c, &image);
    }
    memcpy(call->text, msdu_last_error(), strlen(msdu_last_error()) + 1);
    facts own = {.failed = (uint64_t)-status,
                 .at = image.is_clocked ? image.rounds : image.step,
                 .run = image.run};
    msdu_status agreed = agree(caller, &own);
    if (agreed != MSDU_OK && !msdu__tuning_is_equal(tuning, caller->model->tuning)) {
        (void)msdu__reslice_cut(caller->engine,
                                tuning); /* none takes its state: all are as they were */
        msdu__tune_begin(caller->engine);
    }
    if (agreed != MSDU_OK) {
        msdu__levels_set(caller->engine, caller->job->starts_local);
    }
    if (status != MSDU_OK) {
        return msdu__fail_text(status, call->text); /* the cause, not that there is one */
    }
    if (agreed == MSDU_OK) {
        msdu__image_give(caller, &image);
        msdu__arrays_code(caller->engine, &c, &image);
    }
    return agreed;
}

/* --- on the communication thread, and on the thread that waits for it --- */

/* A command. subject: the call. */
static msdu__outcome carry(msdu__engine *e, void *subject, uint64_t number)
{
    struct msdu__state_call *call = subject;
    (void)number;
    if (!msdu__image_is_quiet(e)) {
        return MSDU__LATER;
    }
    if (msdu__kernels_settle(e) != MSDU_OK) {
        return MSDU__DONE; /* the context has failed: who waits leaves by that */
    }
    call->status = call->is_set ? read_state(call->caller, call) : write_state(call->caller, call);
    memcpy(call->text, msdu_last_error(), strlen(msdu_last_error()) + 1);
    return msdu__event_completed(e);
}

static msdu_status carry_out(struct msdu__state_call *call)
{
    msdu_status status = msdu__caller_carry(
        call->caller, &(msdu__event){.run = carry, .subject = call}, "its state");
    if (status != MSDU_OK) {
        return status;
    }
    return call->status == MSDU_OK ? MSDU_OK : msdu__fail_text(call->status, call->text);
}

msdu_status msdu__state_get(msdu__caller *caller, void *data, size_t bytes, size_t *bytes_out)
{
    struct msdu__state_call call = {.caller = caller, .out = data, .bytes = bytes};
    if (!msdu__caller_is_between_steps(caller)) {
        return msdu__fail(MSDU_ERR_STATE,
                          "rank %d: tensors were announced since the last msdu_step(); take the "
                          "state between steps",
                          caller->job->rank);
    }
    if (caller->is_ticking) {
        return msdu__fail(MSDU_ERR_STATE,
                          "rank %d: by the clock (setting uneven) ranks are in different steps; "
                          "call msdu_synchronize() before, on all ranks",
                          caller->job->rank);
    }
    msdu_status status = carry_out(&call);
    if (status == MSDU_OK) {
        *bytes_out = call.needed;
    }
    return status;
}

msdu_status msdu__state_set(msdu__caller *caller, const void *data, size_t bytes)
{
    struct msdu__state_call call = {.caller = caller, .is_set = true, .in = data, .bytes = bytes};
    if (caller->step != 0 || caller->is_resumed || !msdu__caller_is_between_steps(caller)) {
        return msdu__fail(MSDU_ERR_STATE,
                          "rank %d: a state is set once, after msdu_start() and before the first "
                          "step",
                          caller->job->rank);
    }
    msdu_status status = carry_out(&call);
    if (status == MSDU_OK) {
        msdu__step_resume(caller);
        msdu__inner_resume(caller);
        msdu__log_line(&caller->job->log, MSDU_LOG_INFO,
                       "resumed at step %llu, domain %s, interval %u",
                       (unsigned long long)caller->step, caller->hand->summary.domain,
                       caller->schedules[0].interval);
    }
    return status;
}
