/* SPDX-License-Identifier: Apache-2.0 */
/* Every setting, one row each: name, default, range, help. The struct, the ini file, the
 * environment, `msdu info` and the manual all come from here. */
#include "table.h"

#include "interval/interval.h"
#include "name.h"

#include <string.h>

#define AGREE    MSDU__SETTING_AGREE
#define OWN      0U /* a rank may have its own value */
#define SECRET   MSDU__SETTING_HIDDEN
#define NO_FILE  MSDU__SETTING_NO_FILE
#define TEXT(x)  #x
#define VALUE(x) TEXT(x)

/* The field's C type decides how it is read from msdu_config. */
#define STORE_OF(field)                                                                            \
    _Generic(((const msdu_config *)0)->field,                                                      \
        const char *: MSDU__STORE_TEXT, int32_t: MSDU__STORE_INT32, int64_t: MSDU__STORE_INT64,    \
        uint64_t: MSDU__STORE_UINT64, double: MSDU__STORE_DOUBLE)
#define PLACES(field, resolved)                                                                    \
    .config_at = offsetof(msdu_config, field), .settings_at = offsetof(msdu__settings, resolved),  \
    .store = STORE_OF(field)
/* clang-format off */
#define ROW(kind_, field, resolved, variable, flags_, preset, range_, help_)                       \
    {.name = #field, .environment = "MSDU_" #variable, .default_text = preset, .range = range_,    \
     .help = help_, .kind = MSDU__KIND_##kind_, .flags = flags_, PLACES(field, resolved)
#define STRING(field, variable, flags, preset, range, help)                                        \
    ROW(TEXT, field, field, variable, flags, preset, range, help)}
#define CHOICE(field, resolved, variable, preset, choices, help)                                   \
    ROW(CHOICE, field, resolved, variable, AGREE, preset, choices, help)}
#define INTEGER(field, variable, flags, preset, low_, high_, help)                                 \
    ROW(INTEGER, field, field, variable, flags, #preset, #low_ " .. " #high_, help),               \
    .low = low_, .high = high_}
#define BYTES(field, variable, preset, low_, high_, range, help)                                   \
    ROW(BYTES, field, field, variable, AGREE, preset, range, help), .low = low_, .high = high_}
#define REAL(field, variable, preset, low_, high_, help)                                           \
    ROW(REAL, field, field, variable, AGREE, VALUE(preset), #low_ " .. " #high_, help),            \
    .low = low_, .high = high_}

#define ANY_TEXT "up to 511 bytes"
#define GIB      1073741824.0

static const msdu__setting table[] = {
    STRING(config_file, CONFIG, NO_FILE, "", "a path",
           "ini file with these names, section [msdu] or none"),
    ROW(CHOICE, log_level, log_level, LOG, OWN, "warn", "error, warn, info, debug",
        "lines let through; the variable also turns on standard error without a callback"),
     .low = 1},

    INTEGER(ranks, RANKS, AGREE, 1, 1, 65536,
            "size of the group; else WORLD_SIZE, OMPI_*, PMI_*, SLURM_*"),
    INTEGER(rank, RANK, OWN, 0, 0, 65535, "this process; else RANK, OMPI_*, PMI_*, SLURM_*"),
    STRING(backend, BACKEND, OWN, "gloo", "a name, or the path of a module", "collective backend"),
    STRING(job, JOB, AGREE, "msdu", ANY_TEXT, "job name, checked by the rendezvous"),
    STRING(secret, JOB_SECRET, SECRET, "", ANY_TEXT,
           "shared secret, at least 16 random bytes; checked by the rendezvous, never logged"),
    STRING(rendezvous, RENDEZVOUS, OWN, "",
           "file:///DIR, tcp://HOST:PORT, redis://[USER:PASSWORD@]HOST:PORT[/DB]",
           "where ranks meet; else msdu_config.store, or MASTER_ADDR:MASTER_PORT"),
    STRING(interface, INTERFACE, OWN, "", "an interface, such as eth0",
           "network interface to bind to"),
    STRING(tls_key, TLS_KEY, OWN, "", "a PEM file",
           "TLS private key; all three tls_ settings or none"),
    STRING(tls_cert, TLS_CERT, OWN, "", "a PEM file", "TLS certificate"),
    STRING(tls_ca, TLS_CA, OWN, "", "a PEM file", "TLS certificate authority"),
    INTEGER(deadline_ms, DEADLINE_MS, OWN, 60000, 1, 86400000, "longest wait for another rank"),

    CHOICE(domain, domain, DOMAIN, "auto", "auto, gradient, accumulated, parameter",
           "what is synchronized"),
    CHOICE(overlap, overlap, OVERLAP, "auto", "auto, backward, blocking, delayed, streamed",
           "what a synchronization hides under; auto: gradients backward, parameters delayed"),
    CHOICE(commit, commit_tensor, COMMIT, "round", "round, tensor",
           "release reduced gradients by whole round or tensor by tensor"),
    CHOICE(reduce, reduce_sum, REDUCE, "mean", "mean, sum", "reduction of gradients"),
    CHOICE(broadcast, broadcast, BROADCAST, "no", "no, yes", "start from rank 0's parameters"),
    CHOICE(check_finite, check_finite, CHECK_FINITE, "yes", "no, yes, skip, pass",
           "a NaN or infinity ends the job; in gradients, skip: makes all ranks skip the step; pass: "
           "comes back on all ranks"),
    CHOICE(state, state, STATE, "local", "local, average, reset",
           "optimizer state at a synchronization"),
    INTEGER(delay_steps, DELAY_STEPS, AGREE, 1, 1, 1024,
            "steps until a late mean is applied (tau); divergence with auto: up to 4"),
    INTEGER(fragments, FRAGMENTS, AGREE, 8, 1, 32, "streamed: parts the model is spread over"),

    ROW(POLICY, interval, interval, INTERVAL, AGREE, "divergence", "a policy; msdu info lists them",
        "how the interval is chosen")},
    INTEGER(interval_steps, INTERVAL_STEPS, AGREE, 4, 1, 1000000,
            "h of fixed and post_local, base h of qsr, divergence: h whose harm is the cap"),
    INTEGER(interval_max, INTERVAL_MAX, AGREE, 64, 1, 1000000, "largest h"),
    INTEGER(warmup_steps, WARMUP_STEPS, AGREE, 8, 0, 1000000000, "first steps, at h = 1"),
    INTEGER(total_steps, TOTAL_STEPS, AGREE, 0, 0, 1000000000000000,
            "steps of the run; 0: not known"),
    INTEGER(switch_step, SWITCH_STEP, AGREE, 0, 0, 1000000000000000,
            "post_local: first step with local steps"),
    REAL(target_overhead, TARGET_OVERHEAD, 0.03, 0.0001, 1,
         "share of time that may be spent waiting"),
    CHOICE(prefer, prefer_speed, PREFER, "accuracy", "accuracy, speed",
           "when the wait cannot be hidden within the drift limit"),
    REAL(drift_limit, DRIFT_LIMIT, 0, 0, 1,
         "divergence: largest harm, relative to weights; 0: that of interval_steps, as measured"),
    REAL(drift_exponent, DRIFT_EXPONENT, 1, 0, 8,
         "divergence: the limit moves as (lr / largest lr)^q"),
    REAL(qsr_alpha, QSR_ALPHA, 0.2, 1e-9, 1e9, "qsr: h = (alpha / lr)^2"),
    INTEGER(plateau_patience, PLATEAU_PATIENCE, AGREE, 2, 1, 1000000,
            "plateau: rounds without improvement"),
    REAL(plateau_threshold, PLATEAU_THRESHOLD, 0.05, 0, 1,
         "plateau: relative improvement that counts"),

    STRING(correct, CORRECT, AGREE, "", "rules joined by commas; msdu info lists them",
           "correction after a synchronization; else delayed, or average where overlap is never late"),
    REAL(elastic_alpha, ELASTIC_ALPHA, 0.5, 0.001, 1, "elastic: w <- w - alpha (w - mean)"),
    REAL(outer_lr, OUTER_LR, 0.7, 0.001, 100, "outer: learning rate"),
    REAL(outer_momentum, OUTER_MOMENTUM, 0.7, 0, 0.9999, "outer: momentum"),
    CHOICE(outer_kind, outer_is_nesterov, OUTER_KIND, "nesterov", "momentum, nesterov",
           "outer: kind of momentum"),
    REAL(delayed_keep, DELAYED_KEEP, 1, 0, 1,
         "delayed: share of overlapped progress that is kept"),
    REAL(clip_ratio, CLIP_RATIO, 3, 1, 1e9, "clip: limit as a multiple of the running norm"),

    CHOICE(optimizer, optimizer, OPTIMIZER, "unknown", "unknown, sgd, adam",
           "the trainer's optimizer"),
    REAL(lr, LR, 0, 0, 1e9, "learning rate; 0: not known"),
    REAL(momentum, MOMENTUM, 0, 0, 0.999999, "the trainer's momentum"),
    REAL(dampening, DAMPENING, 0, 0, 0.999999, "the trainer's dampening"),
    REAL(weight_decay, WEIGHT_DECAY, 0, 0, 1e9, "the trainer's weight decay"),
    CHOICE(nesterov, nesterov, NESTEROV, "no", "no, yes", "the trainer's momentum is Nesterov's"),

    BYTES(slice_bytes, SLICE_BYTES, "auto", 64, GIB, "auto, or 64 .. 1GiB",
          "largest slice; auto: by the size of the model and the wire, then as measured"),
    BYTES(fuse_bytes, FUSE_BYTES, "auto", 0, GIB, "auto, or 0 .. 1GiB",
          "smaller tensors are fused up to this; auto: slice_bytes, at most 1 MiB"),
    ROW(INTEGER, window, window, WINDOW, AGREE, "auto", "auto, or 1 .. 64",
        "slices in flight; auto: 4, or as measured where slice_bytes is auto"),
     .low = 1, .high = 64},
    INTEGER(lanes, LANES, AGREE, 2, 1, 8, "independent ordered channels; as many carry slices as is measured best"),
    ROW(WIRE, wire, wire, WIRE, AGREE, "auto", "auto, or a wire format; msdu info lists them",
        "number format of a slice between ranks")},
    ROW(WIRE, wire_warmup, wire_warmup, WIRE_WARMUP, AGREE, "auto",
        "auto, or a wire format; msdu info lists them",
        "number format in the first warmup_steps; auto: wire, or float32 where that is auto")},
    INTEGER(wire_block, WIRE_BLOCK, AGREE, 256, 16, 65536,
            "elements that share a scale, a multiple of 16"),
    CHOICE(wire_rounding, wire_is_stochastic, WIRE_ROUNDING, "nearest", "nearest, stochastic",
           "int8, int4, ternary: how a value between two levels is rounded"),

    STRING(trace_file, TRACE_FILE, OWN, "", "a path; %r is the rank",
           "Chrome trace, written while running"),
    STRING(metrics_file, METRICS_FILE, OWN, "", "a path; %r is the rank",
           "Prometheus text file, replaced while running"),
    INTEGER(metrics_period_ms, METRICS_PERIOD_MS, OWN, 5000, 10, 86400000,
            "time between two metrics files"),
};
/* clang-format on */

#define COUNT (sizeof(table) / sizeof(table[0]))
_Static_assert(COUNT <= MSDU__SETTINGS_MAX, "raise MSDU__SETTINGS_MAX");

const msdu__setting *msdu__setting_at(size_t index)
{
    return index < COUNT ? &table[index] : NULL;
}

size_t msdu__setting_index(const char *name)
{
    for (size_t i = 0; i < COUNT; i++) {
        if (strcmp(table[i].name, name) == 0) {
            return i;
        }
    }
    return SIZE_MAX;
}

const char *msdu__setting_nearest(const char *name, bool is_environment)
{
    const char *best = NULL;
    size_t limit = strlen(name) / 3 + 1; /* more than a third changed is another word */
    for (size_t i = 0; i < COUNT; i++) {
        const char *known = is_environment ? table[i].environment : table[i].name;
        size_t changed = msdu__name_distance(name, known);
        if (changed < limit) {
            limit = changed;
            best = known;
        }
    }
    return best;
}

static const char *type_name(msdu__kind kind)
{
    switch (kind) {
    case MSDU__KIND_INTEGER:
    case MSDU__KIND_BYTES:
        return "integer";
    case MSDU__KIND_REAL:
        return "real";
    case MSDU__KIND_CHOICE:
    case MSDU__KIND_WIRE:
    case MSDU__KIND_POLICY:
        return "choice";
    case MSDU__KIND_TEXT:
        break;
    }
    return "text";
}

msdu_status msdu_setting_get(uint32_t index, msdu_setting_info *info_out)
{
    if (info_out == NULL || info_out->size < sizeof(info_out->size)) {
        return msdu__fail(MSDU_ERR_INVALID, "msdu_setting_get: use MSDU_SETTING_INFO_INIT");
    }
    if (index >= COUNT) {
        return msdu__fail(MSDU_ERR_NOT_FOUND, "msdu_setting_get: there are %zu settings", COUNT);
    }
    const msdu__setting *setting = &table[index];
    size_t size = info_out->size;
    msdu_setting_info info = {size,
                              setting->name,
                              setting->environment,
                              type_name(setting->kind),
                              setting->default_text,
                              setting->range,
                              setting->help};
    memcpy(info_out, &info, size < sizeof(info) ? size : sizeof(info));
    return MSDU_OK;
}
