/* SPDX-License-Identifier: Apache-2.0 */
/* An order with its messages; pure but for memory. */
#include "lower.h"

#include <assert.h>

/* A receive, and the number of the action of its rank in front of which it stands. */
typedef struct receive {
    uint32_t before;
    uint32_t stage;
    uint32_t micro_batch;
    int32_t kind;
} receive;

typedef struct lower_state {
    const msdu__stages_lowering *l;
    uint32_t *needed;  /* stages x M x 2: number of F, and of B or I, on its rank */
    receive *receives; /* of one rank, by peer */
    uint32_t peer_begin[MSDU_STAGES_DEVICES_MAX + 1];
    uint32_t peer_next[MSDU_STAGES_DEVICES_MAX];
    msdu_stages_action *out;
    uint32_t count;
} lower_state;

static bool is_forward(const msdu_stages_action *a)
{
    return a->kind == MSDU_STAGES_FORWARD;
}

/* The stage that an action's result goes to, if it lies on another rank; else false. */
static bool goes_to(const msdu__stages_layout *layout, const msdu_stages_action *a,
                    uint32_t *stage_out)
{
    bool is_last = is_forward(a) ? a->stage + 1 == layout->count : a->stage == 0;
    if (is_last || a->kind == MSDU_STAGES_WEIGHT) {
        return false;
    }
    *stage_out = is_forward(a) ? a->stage + 1 : a->stage - 1;
    return layout->rank[*stage_out] != layout->rank[a->stage];
}

uint32_t msdu__stages_lower_count(const msdu__stages_lowering *lowering)
{
    const msdu__stages_layout *layout = lowering->layout;
    uint32_t count = lowering->rank_begin[layout->ranks];
    for (uint32_t s = 0; s + 1 < layout->count; s++) {
        count += layout->rank[s] != layout->rank[s + 1] ? 4 * lowering->micro_batches : 0;
    }
    return count;
}

static uint32_t *needed_of(const lower_state *state, uint32_t stage, uint32_t micro_batch,
                           bool forward)
{
    return &state->needed[2 * (stage * state->l->micro_batches + micro_batch) + (forward ? 0 : 1)];
}

static void number_actions(lower_state *state)
{
    const msdu__stages_lowering *l = state->l;
    for (uint32_t r = 0; r < l->layout->ranks; r++) {
        for (uint32_t i = l->rank_begin[r]; i < l->rank_begin[r + 1]; i++) {
            const msdu_stages_action *a = &l->actions[i];
            if (a->kind != MSDU_STAGES_WEIGHT) {
                *needed_of(state, a->stage, a->micro_batch, is_forward(a)) = i - l->rank_begin[r];
            }
        }
    }
}

/* What `rank` receives from `peer`, in the order of its sends. None may stand behind a later one,
 * so a receive moves up to the earliest place of those that follow. */
static void list_receives(lower_state *state, uint32_t rank, uint32_t peer)
{
    const msdu__stages_lowering *l = state->l;
    uint32_t count = state->peer_begin[peer];
    for (uint32_t i = l->rank_begin[peer]; i < l->rank_begin[peer + 1]; i++) {
        const msdu_stages_action *a = &l->actions[i];
        uint32_t stage = 0;
        if (!goes_to(l->layout, a, &stage) || l->layout->rank[stage] != rank) {
            continue;
        }
        uint32_t needed = *needed_of(state, stage, a->micro_batch, is_forward(a));
        state->receives[count++] = (receive){
            .before = l->ahead == 0 || needed < l->ahead ? 0 : needed - l->ahead,
            .stage = stage,
            .micro_batch = a->micro_batch,
            .kind = is_forward(a) ? MSDU_STAGES_RECV_FORWARD : MSDU_STAGES_RECV_BACKWARD,
        };
    }
    for (uint32_t i = count; i-- > state->peer_begin[peer] + 1;) {
        receive *earlier = &state->receives[i - 1];
        if (earlier->before > state->receives[i].before) {
            earlier->before = state->receives[i].before;
        }
    }
    state->peer_begin[peer + 1] = count;
    state->peer_next[peer] = state->peer_begin[peer];
}

static void put(lower_state *state, uint32_t stage, uint32_t micro_batch, int32_t kind)
{
    state->out[state->count++] =
        (msdu_stages_action){.stage = stage, .micro_batch = micro_batch, .kind = kind};
}

static void put_receives(lower_state *state, uint32_t number)
{
    for (uint32_t peer = 0; peer < state->l->layout->ranks; peer++) {
        uint32_t *next = &state->peer_next[peer];
        for (; *next < state->peer_begin[peer + 1]; (*next)++) {
            const receive *r = &state->receives[*next];
            if (r->before > number) {
                break;
            }
            put(state, r->stage, r->micro_batch, r->kind);
        }
    }
}

static void lower_rank(lower_state *state, uint32_t rank)
{
    const msdu__stages_lowering *l = state->l;
    state->peer_begin[0] = 0;
    for (uint32_t peer = 0; peer < l->layout->ranks; peer++) {
        list_receives(state, rank, peer);
    }
    for (uint32_t i = l->rank_begin[rank]; i < l->rank_begin[rank + 1]; i++) {
        const msdu_stages_action *a = &l->actions[i];
        uint32_t stage = 0;
        put_receives(state, i - l->rank_begin[rank]);
        put(state, a->stage, a->micro_batch, a->kind);
        if (goes_to(l->layout, a, &stage)) {
            put(state, a->stage, a->micro_batch,
                is_forward(a) ? MSDU_STAGES_SEND_FORWARD : MSDU_STAGES_SEND_BACKWARD);
        }
    }
}

bool msdu__stages_lower(const msdu__stages_lowering *lowering, msdu__stages_memory *memory,
                        msdu_stages_action *out, uint32_t *begin_out)
{
    size_t messages = (size_t)2 * lowering->layout->count * lowering->micro_batches;
    lower_state state = {.l = lowering, .out = out};
    state.needed = msdu__stages_take(memory, messages, sizeof(*state.needed));
    state.receives = msdu__stages_take(memory, messages, sizeof(*state.receives));
    if (memory->is_short) {
        return false;
    }
    number_actions(&state);
    for (uint32_t r = 0; r < lowering->layout->ranks; r++) {
        begin_out[r] = state.count;
        lower_rank(&state, r);
    }
    begin_out[lowering->layout->ranks] = state.count;
    assert(state.count == msdu__stages_lower_count(lowering));
    return true;
}
