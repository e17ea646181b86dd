/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replay of programs, one for each rank, in simulated time. A message moves once its send and its
 * receive have been posted, as over Gloo. Pure but for memory.
 */
#ifndef MSDU_STAGES_REPLAY_H
#define MSDU_STAGES_REPLAY_H

#include "network.h"

typedef enum msdu__replay_verb {
    MSDU__REPLAY_COMPUTE,   /* of: stage * 4 + msdu_stages_kind */
    MSDU__REPLAY_POST_SEND, /* of: a message, here and below */
    MSDU__REPLAY_POST_RECV,
    MSDU__REPLAY_WAIT_SENT,
    MSDU__REPLAY_WAIT_CAME,
} msdu__replay_verb;

typedef struct msdu__replay_op {
    uint32_t verb;
    uint32_t of;
} msdu__replay_op;

typedef struct msdu__replay_message {
    double send_ns; /* posted; INFINITY: not yet, here and below */
    double recv_ns;
    double left_ns;
    double came_ns;
} msdu__replay_message;

typedef struct msdu__replay_rank {
    msdu__replay_op *ops;
    uint32_t count;
    uint32_t next;
    double now_ns;
} msdu__replay_rank;

/* A program; reused from one to the next. */
typedef struct msdu__replay {
    const msdu__stages_model *m;
    const msdu__stages_layout *layout;
    msdu__stages_network network;
    msdu__replay_message *messages;
    uint32_t *ready; /* messages posted on both sides, not under way */
    uint32_t ready_count;
    msdu__replay_rank ranks[MSDU_STAGES_DEVICES_MAX];
    uint32_t room; /* ops of a rank */
    uint32_t stages;
} msdu__replay;

/* The message of a micro-batch over the boundary behind `stage`: forward or back. */
uint32_t msdu__replay_message_of(const msdu__replay *replay, uint32_t stage, uint32_t micro_batch,
                                 bool is_forward);

/* Room for layouts of so many stages on so many ranks, at most `on_one` of them on a rank. */
bool msdu__replay_make(const msdu__stages_model *model, uint32_t stages, uint32_t ranks,
                       uint32_t on_one, msdu__stages_memory *memory, msdu__replay *out);
/* An empty program for a layout, which is borrowed until the next. */
void msdu__replay_clear(msdu__replay *replay, const msdu__stages_layout *layout);
void msdu__replay_add(msdu__replay *replay, uint32_t rank, msdu__replay_verb verb, uint32_t of);
/* Time until all ranks are done; INFINITY: they wait for each other for ever. */
double msdu__replay_run(msdu__replay *replay);

#endif
