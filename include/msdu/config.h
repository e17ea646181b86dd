/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of a context: the struct that msdu_create() takes. Part of msdu.h, which includes it. */
#ifndef MSDU_MSDU_CONFIG_H
#define MSDU_MSDU_CONFIG_H

#include <stddef.h>
#include <stdint.h>

/* First member of a struct that carries its size; the rest is zero. */
#if defined(__cplusplus)
#define MSDU_SIZED(type)                                                                           \
    {                                                                                              \
        sizeof(type)                                                                               \
    }
#else
#define MSDU_SIZED(type)                                                                           \
    {                                                                                              \
        .size = sizeof(type)                                                                       \
    }
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum msdu_log_level {
    MSDU_LOG_DEFAULT = 0, /* warn, or what MSDU_LOG says */
    MSDU_LOG_ERROR = 1,   /* an operation failed */
    MSDU_LOG_WARN = 2,    /* odd, continuing */
    MSDU_LOG_INFO = 3,    /* once per object, and every event that changes training */
    MSDU_LOG_DEBUG = 4,   /* per step */
} msdu_log_level;

/*
 * Receives one line of log text, without newline; `text` is valid during the call.
 * Called without any lock held, from the owner, the communication thread or a backend's thread.
 */
typedef void (*msdu_log_fn)(void *user, msdu_log_level level, const char *text);

typedef struct msdu_store msdu_store; /* msdu/store.h */

/*
 * Settings of a context. Zero (NULL) in any field means "use the default"; new fields are only
 * appended. `msdu info` prints every setting with its default, range and help; the same names,
 * upper case with MSDU_ in front, are read from the environment (MSDU_SLICE_BYTES) and, as
 * they stand, from an ini file. The environment wins over the file, the file over this struct.
 * Of quoted choices the first is the default. All strings are borrowed during msdu_create() only.
 */
typedef struct msdu_config {
    size_t size;             /* sizeof(msdu_config) of the caller; use MSDU_CONFIG_INIT */
    const char *config_file; /* ini file; NULL: environment MSDU_CONFIG, else none */
    msdu_log_fn log;         /* NULL: no log, unless MSDU_LOG asks for one on standard error */
    void *log_user;          /* first argument of log */
    int32_t log_level;       /* msdu_log_level */

    /* the group of ranks */
    int32_t ranks;          /* 0: WORLD_SIZE, OMPI_*, PMI_* or SLURM_*, else 1 */
    int32_t rank;           /* read only if ranks > 0 */
    const char *backend;    /* "local", "gloo" or the path of a module; default "gloo" */
    const char *job;        /* job name, checked by the rendezvous; default "msdu" */
    const char *secret;     /* optional shared secret: at least 16 random bytes; never logged */
    const char *rendezvous; /* file:///DIR, tcp://HOST:PORT, redis://[USER:PASSWORD@]HOST:PORT[/DB];
                               a login is never logged */
    const char *interface;  /* network interface to bind to, such as "eth0" */
    const char *tls_key;    /* PEM files of Gloo's TLS transport, where Gloo has it */
    const char *tls_cert;
    const char *tls_ca;
    int64_t deadline_ms; /* longest wait for another rank; default 60000 */

    /* what is synchronized, and when */
    const char *domain;       /* "auto", "gradient", "accumulated", "parameter" */
    const char *overlap;      /* "auto", "backward", "blocking", "delayed", "streamed" */
    const char *commit;       /* "round", "tensor": when reduced gradients are released */
    const char *reduce;       /* "mean", "sum" of gradients */
    const char *broadcast;    /* "no", "yes": rank 0's parameters at start */
    const char *check_finite; /* "yes", "no", "skip", "pass": what a NaN or infinity does */
    const char *state;        /* optimizer state: "local", "average", "reset" */
    int64_t delay_steps;      /* tau of delayed, streamed and auto; default 1 */
    int64_t fragments;        /* P of streamed; default 8 */

    /* interval */
    const char *interval;     /* "divergence", "fixed", "qsr", "plateau", "post_local", ... */
    int64_t interval_steps;   /* h of fixed and post_local, base h of qsr; default 4 */
    int64_t interval_max;     /* largest h; default 64 */
    int64_t warmup_steps;     /* steps at h = 1 first; default 8 */
    int64_t total_steps;      /* steps of the run, 0: not known */
    int64_t switch_step;      /* post_local: first step with local steps */
    double target_overhead;   /* share of time that may be spent waiting, of which what no format
                                 hides in late rounds counts half; default 0.03 */
    const char *prefer;       /* "accuracy", "speed": when the two bounds cross */
    double drift_limit;       /* cap on harm; default: that of interval_steps, as measured */
    double drift_exponent;    /* q: the cap moves as (lr / largest lr)^q; default 1 */
    double qsr_alpha;         /* QSR (2310.14423): h = (alpha / lr)^2; default 0.2 */
    int64_t plateau_patience; /* plateau: rounds without improvement; default 2 */
    double plateau_threshold; /* plateau: relative improvement; default 0.05 */

    /* correction */
    const char *correct;    /* rules in order, such as "average" or "clip,outer,delayed" */
    double elastic_alpha;   /* elastic: w <- w - alpha (w - mean); default 0.5 */
    double outer_lr;        /* outer: learning rate; default 0.7 */
    double outer_momentum;  /* outer: momentum; default 0.7 */
    const char *outer_kind; /* "nesterov", "momentum" */
    double delayed_keep;    /* delayed: share of overlapped progress kept (rho); default 1 */
    double clip_ratio;      /* clip: limit as a multiple of the running norm; default 3 */

    /* optimizer of the trainer, for the accumulated domain */
    const char *optimizer; /* "unknown", "sgd", "adam" */
    double lr;             /* learning rate now; see also msdu_set_lr() */
    double momentum;
    double dampening;
    double weight_decay;
    const char *nesterov; /* "no", "yes" */

    /* slices and wire */
    uint64_t slice_bytes; /* largest slice; default: by the size of the model and the wire, then as
                             measured */
    uint64_t fuse_bytes;  /* smaller tensors are fused up to this; default slice_bytes, at most
                             1 MiB */
    int64_t window;       /* slices in flight; default 4, then as measured, up to 8 */
    int64_t lanes;        /* independent ordered channels, of which as many are used as measured to
                             be best; default 2 */
    const char *wire;     /* "auto", "float32", "bfloat16", "float16", "int8", "int4", "ternary",
                             "sparse" */
    int64_t wire_block;   /* elements that share a scale; default 256 */

    /* seen from outside; %r in a path becomes the rank */
    const char *trace_file;    /* Chrome trace, written while running */
    const char *metrics_file;  /* Prometheus text, replaced every metrics_period_ms */
    int64_t metrics_period_ms; /* default 5000 */

    /* Lines `name = value` as in an ini file; wins over the fields above. Says what a field cannot:
     * an explicit zero, or a setting that the caller's header does not know. NULL: none */
    const char *settings;

    const char *wire_rounding; /* int8, int4, ternary: "nearest", "stochastic" */
    const char *wire_warmup; /* format in the first warmup_steps; default that of `wire`, or float32
                                where that is "auto" */
    const msdu_store *store; /* by which ranks meet where `rendezvous` is not set; copied, NULL:
                                none */
} msdu_config;

#define MSDU_CONFIG_INIT MSDU_SIZED(msdu_config)

#ifdef __cplusplus
}
#endif

#endif
