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
 * Settings of a context. Zero (NULL) in any field means "use the default": what a comment says, or
 * else the first choice; new fields are only appended. `msdu info` prints every setting with its
 * default, range and help; the same names, upper case with MSDU_ in front, are read from the
 * environment (MSDU_SLICE_BYTES) and, as they stand, from an ini file. The environment wins over
 * the file, the file over this struct. All strings are borrowed during msdu_create() only. Made
 * from src/config/settings.inc (`make settings`).
 */
typedef struct msdu_config {
    size_t size; /* sizeof(msdu_config) of the caller; use MSDU_CONFIG_INIT */

    const char *config_file; /* ini file with these names, section [msdu] or none; a path */
    msdu_log_fn log;         /* NULL: no log, unless MSDU_LOG asks for one on standard error */
    void *log_user;          /* first argument of log */
    int32_t log_level;       /* lines let through (msdu_log_level); the variable also turns on
                                standard error without a callback; error, warn, info, debug; default
                                warn */

    /* the group of ranks */
    int32_t ranks;          /* size of the group; else WORLD_SIZE, OMPI_*, PMI_*, SLURM_*; default
                               1 */
    int32_t rank;           /* this process, read where ranks is set; else RANK, OMPI_*, PMI_*,
                               SLURM_* */
    const char *backend;    /* collective backend; a name, or the path of a module; default gloo */
    const char *job;        /* job name, checked by the rendezvous; for several jobs on the same
                               hosts; up to 511 bytes; default msdu */
    const char *secret;     /* shared secret, at least 16 random bytes; checked by the rendezvous,
                               never logged; up to 511 bytes */
    const char *rendezvous; /* where ranks meet; else msdu_config.store, or MASTER_ADDR:MASTER_PORT;
                               file:///DIR, tcp://HOST:PORT,
                               redis://[USER:PASSWORD@]HOST:PORT[/DB] */
    const char *interface;  /* network interface to bind to, on hosts with several networks; an
                               interface, such as eth0 */
    const char *tls_key;    /* TLS private key, where others can read the network and Gloo was built
                               with TLS; all three tls_ settings or none; a PEM file */
    const char *tls_cert;   /* TLS certificate; a PEM file */
    const char *tls_ca;     /* TLS certificate authority; a PEM file */
    int64_t deadline_ms;    /* longest wait for another rank; default 60000 */

    /* what is synchronized, and when */
    const char *domain;       /* what is synchronized; auto, gradient, accumulated, parameter */
    const char *overlap;      /* what a synchronization hides under; auto: gradients backward,
                                 parameters delayed; auto, backward, blocking, delayed, streamed */
    const char *commit;       /* release reduced gradients by whole round or tensor by tensor;
                                 round, tensor */
    const char *reduce;       /* reduction of gradients; sum: for a trainer that divides them
                                 itself; mean, sum */
    const char *broadcast;    /* start from rank 0's parameters; no, yes */
    const char *check_finite; /* a NaN or infinity ends the job; in gradients, skip: makes all ranks
                                 skip the step; propagate: comes back on all ranks; no, yes, skip,
                                 propagate; default yes */
    const char *state;        /* optimizer state at a synchronization; local, average, reset */
    int64_t delay_steps;      /* steps until a late mean is applied (tau); divergence with auto: up
                                 to 4; default 1 */
    int64_t fragments;        /* streamed: parts the model is spread over; more make the link's load
                                 more even; default 8 */

    /* interval */
    const char *interval;     /* how the interval is chosen; a policy; msdu info lists them; default
                                 divergence */
    int64_t interval_steps;   /* h of fixed and post_local, base h of qsr; divergence: the h whose
                                 approximation error is the error budget; default 4 */
    int64_t interval_max;     /* largest h; for a trainer that must not be without a synchronization
                                 for longer; default 64 */
    int64_t warmup_steps;     /* first steps, at h = 1; default 8 */
    int64_t total_steps;      /* steps of the run; 0: not known */
    int64_t switch_step;      /* post_local (1808.07217): first step with local steps */
    double target_overhead;   /* share of time that may be spent waiting; what no format hides in
                                 late rounds counts half; default 0.03 */
    const char *prefer;       /* when the wait cannot be hidden within the error budget; accuracy,
                                 speed */
    double drift_limit;       /* divergence: error budget, relative to weights, where it is known
                                 from earlier runs of the model; 0: that of interval_steps, as
                                 measured */
    double drift_exponent;    /* divergence: the limit moves as (lr / largest lr)^q; 0: it stays;
                                 default 1 */
    double qsr_alpha;         /* qsr (2310.14423): h = (alpha / lr)^2; default 0.2 */
    int64_t plateau_patience; /* plateau: rounds without improvement; default 2 */
    double plateau_threshold; /* plateau: relative improvement that counts; default 0.05 */

    /* correction */
    const char *correct;    /* correction after a synchronization; else delayed, or average where
                               overlap is never late; rules joined by commas; msdu info lists
                               them */
    double elastic_alpha;   /* elastic: w <- w - alpha (w - mean); default 0.5 */
    double outer_lr;        /* outer (DiLoCo, 2311.08105): learning rate, to be searched for each
                               problem; default 0.7 */
    double outer_momentum;  /* outer: momentum, to be searched likewise; default 0.7 */
    const char *outer_kind; /* outer: kind of momentum; momentum: as in SlowMo (1910.00643);
                               momentum, nesterov; default nesterov */
    double delayed_keep;    /* delayed: share of overlapped progress that is kept; below 1: only to
                               compare, steps are lost; default 1 */
    double clip_ratio;      /* clip: limit as a multiple of the running norm; default 3 */

    /* optimizer of the trainer; what comes after it is for the accumulated domain */
    const char *optimizer; /* the trainer's optimizer; sgd, with or without momentum: gradients may
                              go in sparse; unknown, sgd, adam */
    double lr;             /* learning rate, which msdu_set_lr() changes; 0: not known */
    double momentum;       /* the trainer's momentum */
    double dampening;      /* the trainer's dampening */
    double weight_decay;   /* the trainer's weight decay */
    const char *nesterov;  /* the trainer's momentum is Nesterov's; no, yes */

    /* slices and wire */
    uint64_t slice_bytes; /* largest slice; auto: by the size of the model and the wire, then as
                             measured */
    uint64_t fuse_bytes;  /* smaller tensors are fused up to this; auto: slice_bytes, at most 1
                             MiB */
    int64_t window;       /* slices in flight; auto: 4, or as measured where slice_bytes is auto */
    int64_t lanes;        /* independent ordered channels, of which as many carry slices as is
                             measured best; more for links that one connection does not fill;
                             default 2 */
    const char *wire;     /* number format of a slice between ranks; auto, or a wire format; msdu
                             info lists them */
    int64_t wire_block;   /* elements that share a scale, a multiple of 16; fewer: finer steps, more
                             bytes; default 256 */

    /* seen from outside; %r in a path becomes the rank */
    const char *trace_file;    /* Chrome trace, written while running; a path; %r is the rank */
    const char *metrics_file;  /* Prometheus text file, replaced while running; a path; %r is the
                                  rank */
    int64_t metrics_period_ms; /* time between two metrics files; at most that between two readings
                                  of them; default 5000 */

    /* what a field cannot say, and what came later */
    const char *settings;    /* lines `name = value` as in an ini file, which win over the fields:
                                an explicit zero, or a setting that the caller's header does not
                                know */
    const msdu_store *store; /* by which ranks meet where rendezvous is not set; copied; NULL:
                                none */

    /* ranks of different speeds */
    const char *uneven;      /* ranks of different speeds; wait: all wait for the slowest; clock:
                                rounds by the clock, nobody waits, a slow rank comes in a later one;
                                auto: wait, and clock once more than target_overhead is waited for
                                ranks that are slow for long, or 15 % for bursts; wait, clock,
                                auto */
    double clock_period;     /* clock: steps of the median rank from one round to the next; 0: as
                                fast as the network is; auto: at least these; default 1 */
    double clock_grace;      /* clock: such steps that a round waits for a rank, from when it is
                                due; default 1 */
    int64_t clock_bound;     /* clock: rounds that a rank may miss in a row before all wait for it
                                (stale synchronous parallel; 0: bulk synchronous); default
                                1000000 */
    const char *clock_scale; /* clock: a rank that missed n rounds gives 1 / (1 + n) of its
                                progress, to compare with staleness-aware SGD (1511.05950); no,
                                yes */

    /* hosts of several ranks */
    const char *hosts; /* which ranks share a host, and average gradients in local steps: auto finds
                          it, flat takes no notice of it, or this rank's host by name; auto, flat or
                          a name */

    /* ranks that come and go */
    int64_t ranks_least;   /* fewest ranks that train on after others were lost, and let new ones
                              in; 0: the group is fixed, and a lost rank ends the job */
    int64_t ranks_most;    /* ranks_least: ranks at most, more wait until one is lost; 0: any
                              number */
    int64_t ranks_wait_ms; /* ranks_least: how long to wait for new ranks where fewer than that are
                              left, before the job ends */
} msdu_config;

#define MSDU_CONFIG_INIT MSDU_SIZED(msdu_config)

#ifdef __cplusplus
}
#endif

#endif
