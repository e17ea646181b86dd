/* SPDX-License-Identifier: Apache-2.0 */
/* The arrays of a state: plans and messages of fragments, memory of slices. */
#include <stdlib.h>
#include <string.h>

#include "state.h"

#include "core/kernels.h"

/* --- fragments --- */

static uint32_t fragment_of(const msdu__engine *e, const msdu__image *image, uint32_t slice)
{
    return msdu__fragment_of(e->model, slice, image->is_gradient || e->job->is_accumulated);
}

/* Slices of a fragment in the image's domain, which need not be the present one. */
static uint32_t slices_in(const msdu__engine *e, const msdu__image *image, uint32_t fragment)
{
    bool is_whole = image->is_gradient || e->job->is_accumulated;
    uint32_t bound = is_whole ? e->model->slice_bound : e->model->slicing.slice_count;
    uint32_t count = 0;
    for (uint32_t slice = 0; slice < bound; slice++) {
        count += fragment_of(e, image, slice) == fragment ? 1 : 0;
    }
    return count;
}

/* Read into the place for a plan on its way, of which there is none now. */
static void code_plan(msdu__engine *e, msdu__serial *c, const msdu__image *image, uint32_t index)
{
    msdu__fragment *f = &e->fragments[index];
    uint32_t count = slices_in(e, image, index);
    uint32_t *order = c->in != NULL ? f->order.next : f->order.plan;
    msdu__serial_values(c, "plan", order, count, sizeof(*order));
    if (c->in == NULL || c->bad != NULL) {
        return;
    }
    if (!msdu__plan_is_valid(order, count, e->scratch.marks)) {
        c->bad = "plan";
    } else if (!c->is_dry) {
        memcpy(f->order.plan, order, count * sizeof(*order));
        f->order.hash = msdu__plan_hash(f->order.plan, count);
    }
}

/* In format 4 ranks told neither how long they were queued, nor steps and missed rounds, nor a
 * hash.
 */
static void code_message_4(msdu__serial *c, msdu__control *said)
{
    const size_t first = offsetof(msdu__control, queued_ns);
    const size_t second = offsetof(msdu__control, steps) - offsetof(msdu__control, loss);
    msdu__serial_array(c, "message", said, first / sizeof(double), sizeof(double));
    msdu__serial_array(c, "message", &said->loss, second / sizeof(double), sizeof(double));
    msdu__serial_array(c, "message", said->check, 2, sizeof(double));
    if (!c->is_dry) {
        double host_ranks = 0; /* it was as wide as what is there now */
        memcpy(&host_ranks, &said->host_ranks, sizeof(host_ranks));
        said->host_ranks = (float)host_ranks;
        said->taken_share = said->queued_ns = said->coding_ns = 0;
        said->steps = said->missed = said->hash[0] = said->hash[1] = 0;
    }
}

/* A round whose mean waits is judged when it is applied, by what all ranks said about it. */
static void code_messages(const msdu__engine *e, msdu__serial *c, const msdu__fragment *f,
                          uint64_t format)
{
    for (int32_t rank = 0; rank < e->job->ranks; rank++) {
        msdu__control *said = &f->control.of[rank];
        if (format == 4) {
            code_message_4(c, said);
        } else {
            msdu__serial_array(c, "message", said, offsetof(msdu__control, sketch) / sizeof(double),
                               sizeof(double));
        }
        msdu__serial_array(c, "sketch", said->sketch, MSDU__SKETCH, sizeof(*said->sketch));
    }
}

/* --- slices --- */

/* Memory of a slice: read and written by way of a copy where it is a device's. */
static void code_memory(msdu__engine *e, msdu__serial *c, const char *name, void *array,
                        uint64_t count, uint32_t width)
{
    bool is_moved = e->job->device != NULL && c->bad == NULL && count > 0 &&
                    (c->out != NULL || (c->in != NULL && !c->is_dry));
    if (!is_moved) {
        msdu__serial_array(c, name, array, count, width);
        return;
    }
    void *copy = malloc(count * width);
    msdu_status status = copy != NULL ? MSDU_OK : MSDU_ERR_NO_MEMORY;
    if (status == MSDU_OK && c->out != NULL) {
        status = msdu__kernels_copy(e, copy, array, count * width);
    }
    if (status == MSDU_OK) {
        msdu__serial_array(c, name, copy, count, width);
    }
    if (status == MSDU_OK && c->bad == NULL && c->in != NULL) {
        status = msdu__kernels_copy(e, array, copy, count * width);
    }
    free(copy);
    if (status != MSDU_OK) {
        c->bad = c->bad == NULL ? name : c->bad;
        msdu__handover_fail(e->hand, status, "a copy between device and state failed");
    }
}

static void code_residual(msdu__engine *e, msdu__serial *c, uint32_t slice)
{
    msdu__run *run = &e->runs[slice];
    double scale = run->scale;
    bool has_residual = run->has_residual;
    msdu__serial_flag(c, "error feedback", &has_residual);
    if (!has_residual) {
        return;
    }
    if (run->residual == NULL) {
        c->bad = c->bad == NULL ? "error feedback" : c->bad;
        return;
    }
    msdu__serial_measure(c, "error feedback", &scale);
    code_memory(e, c, "error feedback", run->residual, e->model->slicing.slices[slice].count,
                sizeof(*run->residual));
    code_memory(e, c, "error feedback", run->owner_residual, run->share_count[msdu__outer_rank(e)],
                sizeof(*run->owner_residual));
    if (c->in != NULL && !c->is_dry) {
        run->has_residual = true;
        run->scale = scale;
    }
}

/* Of working type; NULL: there is none in this context, whatever the state's. */
static void code_working(msdu__engine *e, msdu__serial *c, const char *name, void *array,
                         uint32_t slice)
{
    const msdu__slice *cut = &e->model->slicing.slices[slice];
    if (array != NULL) {
        code_memory(e, c, name, array, cut->count, msdu__dtype_working_bytes(cut->dtype));
    }
}

/* Times for the trace and the plan: as if the slice had just come, after its usual time. */
static void give_pending(const msdu__engine *e, msdu__run *run)
{
    uint64_t now = msdu__engine_now(e);
    uint64_t spent = run->link_ns > 0 && run->link_ns < (double)now ? (uint64_t)run->link_ns : 0;
    run->state = MSDU__RUN_REDUCED;
    run->times.done_ns = now;
    run->times.issued_ns = run->times.ready_ns = now - spent;
}

static void code_pending(msdu__engine *e, msdu__serial *c, uint32_t slice)
{
    msdu__run *run = &e->runs[slice];
    code_working(e, c, "mean", run->buf, slice);
    code_working(e, c, "snapshot", run->snapshot, slice);
    msdu__serial_array(c, "norm", &run->found->mean.update_sq, 1, sizeof(double));
    if (c->in != NULL && !c->is_dry) {
        give_pending(e, run);
    }
}

static void code_times(msdu__serial *c, msdu__run *run)
{
    double link_ns = run->link_ns;
    double wait_ns = run->wait_ns;
    msdu__serial_measure(c, "link time", &link_ns);
    msdu__serial_measure(c, "ready time", &wait_ns);
    if (c->in != NULL && !c->is_dry) {
        run->link_ns = link_ns;
        run->wait_ns = wait_ns;
    }
}

static void code_slice(msdu__engine *e, msdu__serial *c, const msdu__image *image, uint32_t slice)
{
    msdu__run *run = &e->runs[slice];
    code_times(c, run);
    code_residual(e, c, slice);
    if (image->is_local_entered && (!run->is_state || image->is_clocked)) {
        code_working(e, c, "anchor", run->anchor, slice);
        code_working(e, c, "momentum", run->momentum, slice);
    }
    code_working(e, c, "drift", run->recursion.drift, slice);
    code_working(e, c, "velocity", run->recursion.velocity, slice);
    code_working(e, c, "trace", run->recursion.trace, slice);
    if (image->fragments[fragment_of(e, image, slice)].schedule.is_pending) {
        code_pending(e, c, slice);
    }
}

void msdu__arrays_code(msdu__engine *e, msdu__serial *c, const msdu__image *image)
{
    for (uint32_t i = 0; i < e->model->fragment_count; i++) {
        code_plan(e, c, image, i);
        if (image->fragments[i].schedule.is_pending) {
            code_messages(e, c, &e->fragments[i], image->format);
        }
    }
    for (uint32_t slice = 0; slice < e->model->slicing.slice_count && c->bad == NULL; slice++) {
        code_slice(e, c, image, slice);
    }
}
