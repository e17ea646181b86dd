/* SPDX-License-Identifier: Apache-2.0 */
/* What the exchange of one slice costs a rank, by topology. Pure. */
#include "network.h"

#include <math.h>
#include <stddef.h>

#define CONTROL_BYTES 400.0 /* of a rank's statistics message, src/core/fragment.h */

const char *msdu__whatif_topology_name(int topology)
{
    static const char *const names[] = {"direct", "ring", "tree", "hierarchical"};
    return topology >= 0 && topology < MSDU__WHATIF_TOPOLOGIES ? names[topology] : NULL;
}

/* What all topologies are computed from. */
typedef struct shape {
    const msdu__whatif_network *net;
    double ranks;
    double nodes;
    double local; /* ranks of a node */
    uint32_t far; /* the link that messages between any two ranks may need */
} shape;

static shape shape_of(const msdu__whatif_network *net)
{
    return (shape){
        .net = net,
        .ranks = net->ranks,
        .nodes = net->nodes,
        .local = (double)net->ranks / net->nodes,
        .far = net->nodes > 1 ? MSDU__WHATIF_BETWEEN : MSDU__WHATIF_INSIDE,
    };
}

static double log2_up(double count)
{
    return count > 1 ? ceil(log2(count)) : 0;
}

/* A chain over all ranks is as slow as its slowest edge. */
static double slowest_rate(const shape *s)
{
    double inside = s->net->links[MSDU__WHATIF_INSIDE].bytes_per_ns;
    double between = s->net->links[MSDU__WHATIF_BETWEEN].bytes_per_ns;
    if (s->nodes <= 1) {
        return inside;
    }
    return s->local > 1 ? fmin(inside, between) : between;
}

static void add_phase(msdu__whatif_exchange *x, uint32_t link, double work_ns, double latency_ns)
{
    x->phases[x->count++] =
        (msdu__whatif_phase){.link = link, .work_ns = work_ns, .latency_ns = latency_ns};
}

/* Every rank sends `each` bytes to every other, at once. */
static void add_direct(const shape *s, double each, msdu__whatif_exchange *x)
{
    double inside = (s->local - 1) * each / s->net->links[MSDU__WHATIF_INSIDE].bytes_per_ns;
    double between =
        s->local * (s->ranks - s->local) * each / s->net->links[MSDU__WHATIF_BETWEEN].bytes_per_ns;
    double work = s->nodes > 1 ? fmax(inside, between) : inside;
    add_phase(x, s->far, work, s->net->links[s->far].latency_ns);
    x->bytes += (s->ranks - 1) * each;
}

static void add_chain(const shape *s, double bytes, double hops, msdu__whatif_exchange *x)
{
    add_phase(x, s->far, bytes / slowest_rate(s), hops * s->net->links[s->far].latency_ns);
    x->bytes += bytes;
}

/* Half of a tree exchange: with few ranks none is the inner node of a whole tree. */
static double tree_bytes(const shape *s, double bytes)
{
    return bytes * fmin(1, s->ranks / 4);
}

static void add_inside(const shape *s, double bytes, msdu__whatif_exchange *x)
{
    const msdu__whatif_link *link = &s->net->links[MSDU__WHATIF_INSIDE];
    double sent = (s->local - 1) / s->local * bytes;
    if (s->local > 1) {
        add_phase(x, MSDU__WHATIF_INSIDE, sent / link->bytes_per_ns, link->latency_ns);
        x->bytes += sent;
    }
}

static void add_between(const shape *s, double bytes, msdu__whatif_exchange *x)
{
    const msdu__whatif_link *link = &s->net->links[MSDU__WHATIF_BETWEEN];
    double sent = (s->nodes - 1) / s->nodes * bytes;
    if (s->nodes > 1) {
        add_phase(x, MSDU__WHATIF_BETWEEN, sent / link->bytes_per_ns,
                  log2_up(s->nodes) * link->latency_ns);
        x->bytes += sent / s->local;
    }
}

static void add_half(const shape *s, double bytes, msdu__whatif_exchange *x)
{
    switch (s->net->topology) {
    case MSDU__WHATIF_RING:
        add_chain(s, (s->ranks - 1) / s->ranks * bytes, s->ranks - 1, x);
        break;
    case MSDU__WHATIF_TREE:
        add_chain(s, tree_bytes(s, bytes), log2_up(s->ranks), x);
        break;
    case MSDU__WHATIF_HIERARCHICAL:
    case MSDU__WHATIF_DIRECT:
    case MSDU__WHATIF_TOPOLOGIES:
        add_direct(s, bytes / s->ranks, x);
        break;
    }
}

/* Owners' shares of a compressed slice may be unequal: what the largest owner sends counts. */
static void add_narrow(const shape *s, const msdu__whatif_load *load, msdu__whatif_exchange *x)
{
    add_direct(s, load->wire_bytes / s->ranks, x);
    x->first = x->count;
    if (s->net->topology == MSDU__WHATIF_RING || s->net->topology == MSDU__WHATIF_TREE) {
        double hops = s->net->topology == MSDU__WHATIF_RING ? s->ranks - 1 : log2_up(s->ranks);
        add_chain(s, (s->ranks - 1) / s->ranks * load->wire_bytes, hops, x);
    } else {
        add_direct(s, load->share_bytes, x);
    }
}

static void add_hierarchical(const shape *s, const msdu__whatif_load *load,
                             msdu__whatif_exchange *x)
{
    double between = load->is_compressed ? load->wire_bytes : load->bytes;
    add_inside(s, load->bytes, x);
    add_between(s, between, x);
    x->first = x->count;
    add_between(s, between, x);
    add_inside(s, load->bytes, x);
}

msdu__whatif_exchange msdu__whatif_exchange_of(const msdu__whatif_network *network,
                                               const msdu__whatif_load *load)
{
    shape s = shape_of(network);
    msdu__whatif_exchange x = {.count = 0};
    if (network->ranks < 2) {
        return x;
    }
    if (network->topology == MSDU__WHATIF_HIERARCHICAL) {
        add_hierarchical(&s, load, &x);
    } else if (load->is_compressed) {
        add_narrow(&s, load, &x);
    } else {
        add_half(&s, load->bytes, &x);
        x.first = x.count;
        add_half(&s, load->bytes, &x);
    }
    return x;
}

double msdu__whatif_message_ns(const msdu__whatif_network *network)
{
    shape s = shape_of(network);
    if (network->ranks < 2) {
        return 0;
    }
    return network->links[s.far].latency_ns + (s.ranks - 1) * CONTROL_BYTES / slowest_rate(&s);
}
