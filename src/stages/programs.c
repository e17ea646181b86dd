/* SPDX-License-Identifier: Apache-2.0 */
/* Programs to replay: a given order, and torch's schedules of one stage a rank; pure. */
#include "programs.h"

/* --- a given order --- */

static bool is_same_rank(const msdu__stages_layout *layout, uint32_t stage)
{
    return layout->rank[stage] == layout->rank[stage + 1];
}

static void post_receives(msdu__replay *replay)
{
    const msdu__stages_layout *layout = replay->layout;
    for (uint32_t s = 0; s + 1 < layout->count; s++) {
        for (uint32_t i = 0; i < replay->m->micro_batches && !is_same_rank(layout, s); i++) {
            msdu__replay_add(replay, layout->rank[s + 1], MSDU__REPLAY_POST_RECV,
                             msdu__replay_message_of(replay, s, i, true));
            msdu__replay_add(replay, layout->rank[s], MSDU__REPLAY_POST_RECV,
                             msdu__replay_message_of(replay, s, i, false));
        }
    }
}

static void add_given(msdu__replay *replay, uint32_t rank, const msdu_stages_action *a)
{
    const msdu__stages_layout *layout = replay->layout;
    bool is_forward = a->kind == MSDU_STAGES_FORWARD;
    bool has_above = a->stage > 0 && !is_same_rank(layout, a->stage - 1);
    bool has_below = a->stage + 1 < layout->count && !is_same_rank(layout, a->stage);
    uint32_t above = a->stage > 0 ? a->stage - 1 : 0;
    if (a->kind != MSDU_STAGES_WEIGHT && (is_forward ? has_above : has_below)) {
        msdu__replay_add(replay, rank, MSDU__REPLAY_WAIT_CAME,
                         msdu__replay_message_of(replay, is_forward ? above : a->stage,
                                                 a->micro_batch, is_forward));
    }
    msdu__replay_add(replay, rank, MSDU__REPLAY_COMPUTE, a->stage * 4 + (uint32_t)a->kind);
    if (a->kind != MSDU_STAGES_WEIGHT && (is_forward ? has_below : has_above)) {
        msdu__replay_add(replay, rank, MSDU__REPLAY_POST_SEND,
                         msdu__replay_message_of(replay, is_forward ? a->stage : above,
                                                 a->micro_batch, is_forward));
    }
}

void msdu__programs_given(msdu__replay *replay, const msdu_stages_action *actions,
                          const uint32_t *rank_begin)
{
    post_receives(replay);
    for (uint32_t r = 0; r < replay->layout->ranks; r++) {
        for (uint32_t i = rank_begin[r]; i < rank_begin[r + 1]; i++) {
            add_given(replay, r, &actions[i]);
        }
    }
}

/* --- torch's: rank s has stage s --- */

/* A direction of stage s: forward messages come from above and go below, backward ones the other
 * way. Where there is no neighbor, nothing is done. */
static void receive(msdu__replay *replay, uint32_t s, bool is_forward, msdu__replay_verb verb,
                    uint32_t micro_batch)
{
    if (is_forward ? s > 0 : s + 1 < replay->layout->count) {
        msdu__replay_add(
            replay, s, verb,
            msdu__replay_message_of(replay, is_forward ? s - 1 : s, micro_batch, is_forward));
    }
}

static void send(msdu__replay *replay, uint32_t s, bool is_forward, msdu__replay_verb verb,
                 uint32_t micro_batch)
{
    if (is_forward ? s + 1 < replay->layout->count : s > 0) {
        msdu__replay_add(
            replay, s, verb,
            msdu__replay_message_of(replay, is_forward ? s : s - 1, micro_batch, is_forward));
    }
}

static void compute(msdu__replay *replay, uint32_t s, bool is_forward)
{
    int kind = is_forward ? MSDU_STAGES_FORWARD : MSDU_STAGES_BACKWARD;
    msdu__replay_add(replay, s, MSDU__REPLAY_COMPUTE, s * 4 + (uint32_t)kind);
}

/* Receive, wait, compute. */
static void receive_and_compute(msdu__replay *replay, uint32_t s, bool is_forward, uint32_t i)
{
    receive(replay, s, is_forward, MSDU__REPLAY_POST_RECV, i);
    receive(replay, s, is_forward, MSDU__REPLAY_WAIT_CAME, i);
    compute(replay, s, is_forward);
}

/* One batch: send what the last action made and receive for the next, wait for both. */
static void exchange(msdu__replay *replay, uint32_t s, bool sends_forward, uint32_t sent,
                     uint32_t received)
{
    send(replay, s, sends_forward, MSDU__REPLAY_POST_SEND, sent);
    receive(replay, s, !sends_forward, MSDU__REPLAY_POST_RECV, received);
    send(replay, s, sends_forward, MSDU__REPLAY_WAIT_SENT, sent);
    receive(replay, s, !sends_forward, MSDU__REPLAY_WAIT_CAME, received);
}

/* schedules.py, Schedule1F1B._step_microbatches, line by line. */
static void add_1f1b(msdu__replay *replay, uint32_t s)
{
    uint32_t all = replay->m->micro_batches;
    uint32_t warm_up = replay->layout->count - s < all ? replay->layout->count - s : all;
    uint32_t forward = 0;
    uint32_t backward = 0;
    for (; forward < warm_up; forward++) {
        receive_and_compute(replay, s, true, forward);
        if (forward > 0) {
            send(replay, s, true, MSDU__REPLAY_WAIT_SENT, forward - 1);
        }
        if (forward + 1 < warm_up) {
            send(replay, s, true, MSDU__REPLAY_POST_SEND, forward);
        }
    }
    for (;;) {
        exchange(replay, s, true, forward - 1, backward);
        compute(replay, s, false);
        backward++;
        if (forward == all) {
            break;
        }
        exchange(replay, s, false, backward - 1, forward);
        compute(replay, s, true);
        forward++;
    }
    send(replay, s, false, MSDU__REPLAY_POST_SEND, backward - 1);
    for (; backward < all; backward++) {
        receive_and_compute(replay, s, false, backward);
        send(replay, s, false, MSDU__REPLAY_WAIT_SENT, backward - 1);
        send(replay, s, false, MSDU__REPLAY_POST_SEND, backward);
    }
    send(replay, s, false, MSDU__REPLAY_WAIT_SENT, all - 1);
}

void msdu__programs_1f1b(msdu__replay *replay)
{
    for (uint32_t s = 0; s < replay->layout->count; s++) {
        add_1f1b(replay, s);
    }
}

/* All of one direction, then the sends of it are waited for. */
static void add_sweep(msdu__replay *replay, uint32_t s, bool is_forward)
{
    for (uint32_t i = 0; i < replay->m->micro_batches; i++) {
        receive_and_compute(replay, s, is_forward, i);
        send(replay, s, is_forward, MSDU__REPLAY_POST_SEND, i);
    }
    for (uint32_t i = 0; i < replay->m->micro_batches; i++) {
        send(replay, s, is_forward, MSDU__REPLAY_WAIT_SENT, i);
    }
}

void msdu__programs_gpipe(msdu__replay *replay)
{
    for (uint32_t s = 0; s < replay->layout->count; s++) {
        add_sweep(replay, s, true);
        add_sweep(replay, s, false);
    }
}
