/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of a context: what the trainer adds, and where their memory is from step to step. */
#include "guard.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES  256
#define TENSORS_MAX 1000000U
#define BYTES_MAX   (UINT64_C(1) << 56) /* of all tensors as doubles: no sum of sizes wraps */

static msdu_status check_desc(const msdu_ctx *ctx, const msdu_tensor_desc *d)
{
    size_t length = d->name == NULL ? 0 : strnlen(d->name, NAME_BYTES);
    if (length == 0 || length == NAME_BYTES) {
        return msdu__fail(MSDU_ERR_INVALID, "tensor %u: name must have 1 .. %d bytes",
                          ctx->model.tensor_count, NAME_BYTES - 1);
    }
    if (d->count == 0 || d->dtype < MSDU_FLOAT32 || d->dtype > MSDU_BFLOAT16) {
        return msdu__fail(MSDU_ERR_INVALID, "tensor '%s': count %llu or dtype %d out of range",
                          d->name, (unsigned long long)d->count, d->dtype);
    }
    if (d->count > (BYTES_MAX - ctx->model.tensor_bytes) / sizeof(double)) {
        return msdu__fail(
            MSDU_ERR_INVALID,
            "tensor '%s': count %llu is too large: all tensors together may have %llu "
            "elements",
            d->name, (unsigned long long)d->count,
            (unsigned long long)(BYTES_MAX / sizeof(double)));
    }
    if (d->role == MSDU_ROLE_MODEL && d->parameter == NULL && d->gradient == NULL) {
        return msdu__fail(MSDU_ERR_INVALID, "tensor '%s': needs parameter or gradient", d->name);
    }
    bool is_plain = d->role >= MSDU_ROLE_STATE && d->role <= MSDU_ROLE_FIXED;
    if (d->role != MSDU_ROLE_MODEL && (!is_plain || d->parameter == NULL)) {
        return msdu__fail(MSDU_ERR_INVALID, "tensor '%s': bad role %d, or no parameter", d->name,
                          d->role);
    }
    if (d->place != MSDU_PLACE_HOST && d->place != MSDU_PLACE_DEVICE) {
        return msdu__fail(MSDU_ERR_INVALID, "tensor '%s': place %d is not known", d->name,
                          d->place);
    }
    if (ctx->model.tensor_count > 0 && d->place != ctx->model.tensors[0].place) {
        return msdu__fail(MSDU_ERR_UNSUPPORTED,
                          "tensor '%s': all tensors of a context are in one place, the host or the "
                          "device",
                          d->name);
    }
    if (msdu__dtype_is_half(d->dtype) && ctx->job.settings.reduce_sum &&
        ctx->job.settings.domain == MSDU__DOMAIN_ACCUMULATED) {
        return msdu__fail(MSDU_ERR_UNSUPPORTED,
                          "tensor '%s': sums of 16-bit gradients do not go with local steps in the "
                          "accumulated domain",
                          d->name);
    }
    uintptr_t places = (uintptr_t)d->parameter | (uintptr_t)d->gradient;
    if (places % msdu__dtype_bytes(d->dtype) != 0) {
        return msdu__fail(MSDU_ERR_INVALID, "tensor '%s': memory is not aligned to its elements",
                          d->name);
    }
    return MSDU_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* A copy that no other tensor has, into *name_out; owned by the tensor. */
static msdu_status take_name(msdu_ctx *ctx, const char *name, char **name_out)
{
    char *copy = name == NULL ? NULL : strdup(name); /* checked before; linters do not see it */
    char *const *found =
        copy != NULL ? tsearch(copy, &ctx->model.tensor_names, compare_names) : NULL;
    if (found == NULL) {
        free(copy);
        return msdu__fail(MSDU_ERR_NO_MEMORY, "no memory for tensor '%s'", name);
    }
    if (*found != copy) {
        free(copy);
        return msdu__fail(MSDU_ERR_INVALID, "tensor '%s' was added twice", name);
    }
    *name_out = copy;
    return MSDU_OK;
}

static void keep(void *name)
{
    (void)name; /* the tensor's */
}

void msdu__tensors_free(msdu__model *model)
{
    tdestroy(model->tensor_names, keep);
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        free(model->tensors[i].name);
    }
    free(model->tensors);
}

/* The caller's struct may be shorter than ours (older header), or longer if the rest is zero. */
static msdu_status copy_desc(const msdu_tensor_desc *desc, msdu_tensor_desc *out)
{
    memset(out, 0, sizeof(*out));
    if (desc->size == 0) {
        return msdu__fail(MSDU_ERR_INVALID, "msdu_tensor_desc.size is 0: use MSDU_TENSOR_INIT");
    }
    const unsigned char *bytes = (const unsigned char *)desc;
    for (size_t i = sizeof(*out); i < desc->size; i++) {
        if (bytes[i] != 0) {
            return msdu__fail(MSDU_ERR_UNSUPPORTED, "msdu_tensor_desc is from a newer header");
        }
    }
    memcpy(out, desc, desc->size < sizeof(*out) ? desc->size : sizeof(*out));
    return MSDU_OK;
}

static bool grow_tensors(msdu_ctx *ctx)
{
    /* powers of two: room is used up when the count is one */
    if ((ctx->model.tensor_count & (ctx->model.tensor_count - 1)) != 0) {
        return true;
    }
    size_t room = ctx->model.tensor_count == 0 ? 1 : 2 * (size_t)ctx->model.tensor_count;
    msdu__tensor *grown = realloc(ctx->model.tensors, room * sizeof(*grown));
    if (grown != NULL) {
        ctx->model.tensors = grown;
    }
    msdu__lease *leases = realloc(ctx->hand.leases, room * sizeof(*leases));
    if (leases != NULL) {
        ctx->hand.leases = leases;
    }
    return grown != NULL && leases != NULL;
}

msdu_status msdu_tensor_add(msdu_ctx *ctx, const msdu_tensor_desc *desc, uint32_t *id_out)
{
    msdu_status status = msdu__guard(ctx);
    if (status != MSDU_OK) {
        return status;
    }
    if (desc == NULL) {
        return msdu__fail(MSDU_ERR_INVALID, "desc is NULL");
    }
    msdu_tensor_desc d;
    status = copy_desc(desc, &d);
    if (status == MSDU_OK && (ctx->caller.is_started || ctx->model.tensor_count == TENSORS_MAX)) {
        status = msdu__fail(MSDU_ERR_STATE, "tensors are added before msdu_start()");
    }
    if (status == MSDU_OK) {
        status = check_desc(ctx, &d);
    }
    if (status != MSDU_OK) {
        return status;
    }
    if (!grow_tensors(ctx)) {
        return msdu__fail(MSDU_ERR_NO_MEMORY, "no memory for tensor '%s'", d.name);
    }
    char *name = NULL;
    status = take_name(ctx, d.name, &name);
    if (status != MSDU_OK) {
        return status;
    }
    msdu__tensor *t = &ctx->model.tensors[ctx->model.tensor_count];
    memset(t, 0, sizeof(*t));
    memset(&ctx->hand.leases[ctx->model.tensor_count], 0, sizeof(*ctx->hand.leases));
    t->name = name;
    t->parameter = d.parameter;
    t->gradient = d.gradient;
    t->count = d.count;
    t->dtype = d.dtype;
    t->role = d.role;
    t->priority = d.priority;
    t->place = d.place;
    if (id_out != NULL) {
        *id_out = ctx->model.tensor_count;
    }
    ctx->model.tensor_bytes += d.count * sizeof(double);
    ctx->model.tensor_count++;
    return MSDU_OK;
}

static msdu_status check_move(const msdu_ctx *ctx, uint32_t id, msdu_what what, const void *data)
{
    const msdu__tensor *t = &ctx->model.tensors[id];
    const void *present = what == MSDU_GRADIENT ? t->gradient : t->parameter;
    const char *kind = what == MSDU_GRADIENT ? "gradient" : "parameter";
    if (present == NULL || data == NULL) {
        return msdu__fail(MSDU_ERR_INVALID, "rank %d: tensor '%s' %s", ctx->job.rank, t->name,
                          data == NULL ? "cannot move to NULL" : "was added without this memory");
    }
    if ((uintptr_t)data % msdu__dtype_bytes(t->dtype) != 0) {
        return msdu__fail(MSDU_ERR_INVALID,
                          "rank %d: %s of tensor '%s' is not aligned to its elements",
                          ctx->job.rank, kind, t->name);
    }
    bool is_inner =
        ctx->inner != NULL && msdu__handover_is_busy(&ctx->inner->hand, id, (uint32_t)what);
    if (is_inner || msdu__handover_is_busy(&ctx->hand, id, (uint32_t)what)) {
        return msdu__fail(MSDU_ERR_STATE,
                          "rank %d: %s of tensor '%s' is the library's until msdu_tensor_wait()",
                          ctx->job.rank, kind, t->name);
    }
    return MSDU_OK;
}

/* Plain stores: a communication thread reads them only of memory that was handed over. */
static void move(const msdu__model *model, uint32_t id, msdu_what what, void *data)
{
    msdu__tensor *t = &model->tensors[id];
    *(what == MSDU_GRADIENT ? &t->gradient : &t->parameter) = data;
}

msdu_status msdu_tensor_set(msdu_ctx *ctx, uint32_t id, msdu_what what, void *data)
{
    msdu_status status = msdu__guard(ctx);
    if (status != MSDU_OK) {
        return status;
    }
    if (id >= ctx->model.tensor_count || (what != MSDU_GRADIENT && what != MSDU_PARAMETER)) {
        return msdu__fail(MSDU_ERR_INVALID, "rank %d: no tensor %u, or not one kind of memory: %d",
                          ctx->job.rank, id, (int)what);
    }
    status = check_move(ctx, id, what, data);
    if (status == MSDU_OK) {
        move(&ctx->model, id, what, data);
        if (ctx->inner != NULL) {
            move(&ctx->inner->model, id, what, data);
        }
    }
    return status;
}
