/* SPDX-License-Identifier: Apache-2.0 */
/* One channel: a thread that carries out its operations in order over connections of its own. */
#ifndef MSDU_GLOO_LANE_H
#define MSDU_GLOO_LANE_H

#include "gloo_mesh.h"

#include <array>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <gloo/transport/unbound_buffer.h>

/* One operation in flight; a member of the pool made by open(). */
struct msdu_req {
    msdu_op op;
    msdu_req *next_free;
    bool is_done; /* guarded by the owner's lock */
    msdu_status status;
};

namespace msdu_gloo
{

using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

/* Unbound buffers over all memory: an address is an offset, so none is made per operation. */
struct Stage {
    Buffer scatter_recv;
    Buffer scatter_send;
    Buffer gather_recv;
    Buffer gather_send;
    std::unique_ptr<unsigned char[]> scratch;
};

/* A block under way, and how many transfers it still waits for. */
struct Block {
    msdu_req *req;
    Stage *stage;
    uint64_t offset; /* bytes from op.recv, allreduce only */
    uint64_t bytes;
    uint64_t index; /* within the operation */
    int scatter_recvs;
    int scatter_sends;
    int gather_recvs;
    int gather_sends;
    bool is_last;
};

/* What a channel tells its owner, from the channel's thread. */
class Owner
{
  public:
    virtual ~Owner() = default;
    /* A channel met an error: find its cause. Returns the status of the requests in flight. */
    virtual msdu_status fail(const std::string &what) = 0;
    virtual bool has_failed() const = 0;
    virtual void complete(msdu_req *req, msdu_status status) = 0;
};

/*
 * Each channel has connections of its own, so that a small operation never waits behind a large one
 * of another channel, and an operation is cut into blocks of which two are under way at once: while
 * one is gathered the next is scattered.
 *
 * An allreduce is a direct reduce-scatter and all-gather: rank j receives block part j of all
 * ranks, adds them in rank order, and sends the sum to all. The bits are equal on all ranks because
 * each element is summed once. Against gloo::allreduce (2022) on loopback of a busy machine with 2
 * cores, best of n in microseconds, ring, bcube, and this in slices of 4 MiB on 2 channels:
 * - 2 ranks, 64 KiB: 156, 139, 118
 * - 2 ranks, 1 MiB: 382, 275, 335
 * - 2 ranks, 64 MiB: 33659, 57702, 30159
 * - 4 ranks, 64 KiB: 766, 358, 274
 * - 4 ranks, 1 MiB: 1581, 896, 962
 * - 4 ranks, 64 MiB: 81754, 125269, 78390
 *
 * So it is used for all sizes. Slices of 1 MiB take a tenth more, of 256 KiB three times as much.
 *
 * Memory: two blocks of scratch per channel, made by the constructor. Gloo itself allocates a few
 * small nodes (queues and maps by slot) for every send and receive; this file allocates nothing
 * after the constructor.
 */
class Lane
{
  public:
    Lane(const msdu_host &host, Owner &owner, Context context);
    ~Lane();
    Lane(const Lane &) = delete;
    Lane &operator=(const Lane &) = delete;

    /* Queue an operation. Never blocks; the pool of requests bounds the queue. */
    void push(msdu_req *req);
    /* Make all waits of the worker end at once. Thread: any. */
    void interrupt();
    /* End the worker; what is queued fails. */
    void stop();
    /* Has the worker waited past the deadline? Thread: any. */
    bool is_stalled(uint64_t now_ns, uint64_t *sequence_out) const;
    /* Operations pushed, and what operation `sequence` is. Thread: any. */
    uint64_t progress(uint64_t sequence, uint32_t *print_out) const;

  private:
    enum class Way { kRecv, kSend };

    void run();
    bool take(Block *block, bool may_wait, bool *is_over);
    void cut(Block *block);
    void abandon(Block *block, bool has_block, Block *previous, bool has_previous);
    void post(Block *block);
    void post_allreduce(Block *block);
    void post_exchange(Block *block);
    void post_gather(Block *block);
    void post_broadcast(Block *block);
    void reduce(Block *block);
    void finish(Block *block);
    void wait(Way way, const Block &block, const Buffer &buffer, int *count);
    uint64_t slot(const Block &block, unsigned phase) const;
    uint64_t part(const Block &block, int rank) const;

    const msdu_host &host_;
    Owner &owner_;
    Context context_;
    std::array<Stage, 2> stages_;
    unsigned next_stage_ = 0;

    std::mutex lock_; /* guards the queue; a leaf */
    std::condition_variable changed_;
    std::vector<msdu_req *> queue_; /* a ring */
    size_t queue_first_ = 0;
    size_t queue_count_ = 0;
    bool is_stopping_ = false;

    msdu_req *current_ = nullptr; /* the operation that is being cut into blocks */
    uint64_t current_offset_ = 0;
    uint64_t current_index_ = 0;

    /* Read by the hub's thread; each is a value of its own, so relaxed order is enough. */
    std::atomic<uint64_t> waiting_since_{0};
    std::atomic<uint64_t> waiting_sequence_{0};
    std::atomic<uint64_t> started_{0};
    std::vector<std::atomic<uint64_t>> prints_; /* sequence (upper half) and print, by sequence */
    std::thread thread_;
};

} // namespace msdu_gloo

#endif
