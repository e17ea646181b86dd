/* SPDX-License-Identifier: Apache-2.0 */
/* Replay of programs in simulated time; pure but for memory. */
#include "replay.h"

#include <assert.h>
#include <math.h>

#define OPS_OF_AN_ACTION 6 /* at most: with posts and waits before and behind it */

uint32_t msdu__replay_message_of(const msdu__replay *replay, uint32_t stage, uint32_t micro_batch,
                                 bool is_forward)
{
    return 2 * (stage * replay->m->micro_batches + micro_batch) + (is_forward ? 0 : 1);
}

bool msdu__replay_make(const msdu__stages_model *model, uint32_t stages, uint32_t ranks,
                       uint32_t on_one, msdu__stages_memory *memory, msdu__replay *out)
{
    size_t messages = (size_t)2 * stages * model->micro_batches;
    *out = (msdu__replay){.m = model, .stages = stages};
    out->room = OPS_OF_AN_ACTION * 3 * on_one * model->micro_batches;
    out->messages = msdu__stages_take(memory, messages, sizeof(*out->messages));
    out->ready = msdu__stages_take(memory, messages, sizeof(*out->ready));
    msdu__replay_op *ops =
        msdu__stages_take(memory, (size_t)ranks * out->room, sizeof(msdu__replay_op));
    for (uint32_t r = 0; ops != NULL && r < ranks; r++) {
        out->ranks[r].ops = &ops[(size_t)r * out->room];
    }
    return !memory->is_short && msdu__stages_network_make(model, memory, &out->network);
}

void msdu__replay_clear(msdu__replay *replay, const msdu__stages_layout *layout)
{
    assert(layout->count <= replay->stages);
    replay->layout = layout;
    for (uint32_t r = 0; r < layout->ranks; r++) {
        msdu__replay_rank *rank = &replay->ranks[r];
        *rank = (msdu__replay_rank){.ops = rank->ops};
    }
}

void msdu__replay_add(msdu__replay *replay, uint32_t rank, msdu__replay_verb verb, uint32_t of)
{
    msdu__replay_rank *r = &replay->ranks[rank];
    assert(r->count < replay->room);
    r->ops[r->count++] = (msdu__replay_op){.verb = verb, .of = of};
}

static double take_of(const msdu__replay *replay, uint32_t of)
{
    const msdu__stages_model *m = replay->m;
    uint32_t s = of / 4;
    uint32_t device = replay->layout->device[s];
    uint32_t first = replay->layout->first[s];
    uint32_t end = replay->layout->first[s + 1];
    switch ((int)(of % 4)) {
    case MSDU_STAGES_FORWARD:
        return msdu__stages_forward(m, device, first, end);
    case MSDU_STAGES_BACKWARD:
        return msdu__stages_backward(m, device, first, end);
    case MSDU_STAGES_WEIGHT:
        return msdu__stages_weight(m, device, first, end);
    default:
        return msdu__stages_backward(m, device, first, end) -
               msdu__stages_weight(m, device, first, end);
    }
}

static void post(msdu__replay *replay, uint32_t message, double *side, double now_ns)
{
    msdu__replay_message *m = &replay->messages[message];
    *side = now_ns;
    if (m->send_ns < (double)INFINITY && m->recv_ns < (double)INFINITY) {
        replay->ready[replay->ready_count++] = message;
    }
}

/* False: it waits for what is not known yet. */
static bool advance(msdu__replay *replay, msdu__replay_rank *r)
{
    const msdu__replay_op *op = &r->ops[r->next];
    if (op->verb == MSDU__REPLAY_COMPUTE) {
        r->now_ns += take_of(replay, op->of);
    } else {
        msdu__replay_message *m = &replay->messages[op->of];
        double known = op->verb == MSDU__REPLAY_WAIT_SENT   ? m->left_ns
                       : op->verb == MSDU__REPLAY_WAIT_CAME ? m->came_ns
                                                            : 0;
        if (known == (double)INFINITY) {
            return false;
        }
        r->now_ns = fmax(r->now_ns, known);
        if (op->verb == MSDU__REPLAY_POST_SEND) {
            post(replay, op->of, &m->send_ns, r->now_ns);
        } else if (op->verb == MSDU__REPLAY_POST_RECV) {
            post(replay, op->of, &m->recv_ns, r->now_ns);
        }
    }
    r->next++;
    return true;
}

static double ready_of(const msdu__replay *replay, uint32_t message)
{
    const msdu__replay_message *m = &replay->messages[message];
    return fmax(m->send_ns, m->recv_ns);
}

/* Stages at both ends of a message, and the boundary in between. */
typedef struct ends {
    uint32_t from;
    uint32_t to;
    uint32_t boundary;
} ends;

static ends ends_of(const msdu__replay *replay, uint32_t message)
{
    uint32_t stage = message / 2 / replay->m->micro_batches;
    bool is_forward = message % 2 == 0;
    return (ends){is_forward ? stage : stage + 1, is_forward ? stage + 1 : stage, stage + 1};
}

/* As order.c has it: of two that are ready at once, the one of the smaller rank, then the first. */
static bool goes_before(const msdu__replay *replay, uint32_t message, uint32_t other)
{
    double a = ready_of(replay, message);
    double b = ready_of(replay, other);
    const uint32_t *rank = replay->layout->rank;
    return a < b ||
           (a == b && rank[ends_of(replay, message).from] < rank[ends_of(replay, other).from]);
}

/* The message that has been ready for longest; false: none is. All ranks wait, so nothing can
 * become ready before it. */
static bool move_message(msdu__replay *replay)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < replay->ready_count; i++) {
        if (goes_before(replay, replay->ready[i], replay->ready[best])) {
            best = i;
        }
    }
    if (replay->ready_count == 0) {
        return false;
    }
    uint32_t message = replay->ready[best];
    for (uint32_t i = best + 1; i < replay->ready_count; i++) {
        replay->ready[i - 1] = replay->ready[i];
    }
    replay->ready_count--;
    const msdu__stages_layout *layout = replay->layout;
    ends e = ends_of(replay, message);
    msdu__replay_message *m = &replay->messages[message];
    m->came_ns = msdu__stages_network_send(
        &replay->network, layout->device[e.from], layout->device[e.to],
        replay->m->cross[layout->first[e.boundary]], ready_of(replay, message), &m->left_ns);
    return true;
}

static void begin(msdu__replay *replay)
{
    size_t messages = (size_t)2 * replay->layout->count * replay->m->micro_batches;
    for (size_t i = 0; i < messages; i++) {
        replay->messages[i] = (msdu__replay_message){
            .send_ns = (double)INFINITY,
            .recv_ns = (double)INFINITY,
            .left_ns = (double)INFINITY,
            .came_ns = (double)INFINITY,
        };
    }
    replay->ready_count = 0;
    msdu__stages_network_clear(&replay->network);
}

double msdu__replay_run(msdu__replay *replay)
{
    double end_ns = 0;
    begin(replay);
    do {
        for (uint32_t i = 0; i < replay->layout->ranks; i++) {
            msdu__replay_rank *r = &replay->ranks[i];
            while (r->next < r->count && advance(replay, r)) {
            }
        }
    } while (move_message(replay));
    for (uint32_t i = 0; i < replay->layout->ranks; i++) {
        const msdu__replay_rank *r = &replay->ranks[i];
        end_ns = fmax(end_ns, r->next < r->count ? (double)INFINITY : r->now_ns);
    }
    return end_ns;
}
