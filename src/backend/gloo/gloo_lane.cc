/* SPDX-License-Identifier: Apache-2.0 */
/* One channel: a worker thread that carries out its operations in order over its own connections.
 */
#include "gloo_lane.h"
#include "backend/local_move.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <ctime>
#include <utility>

namespace msdu_gloo
{

namespace
{

constexpr uint64_t kBlockBytes = UINT64_C(4) << 20; /* largest block of an allreduce */
constexpr size_t kSumCount = 1024;                  /* elements summed at a time, in cache */
constexpr unsigned kScatter = 1;
constexpr unsigned kGather = 2;
/* Gloo's own time limit is only a last resort: the hub ends a wait at the deadline. */
constexpr uint64_t kGraceMs = 5000;

/* A wait was ended by interrupt(). */
struct Interrupted {
};

/* The hub's clock. */
uint64_t now_ns()
{
    struct timespec time {
    };
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<uint64_t>(time.tv_sec) * UINT64_C(1000000000) +
           static_cast<uint64_t>(time.tv_nsec);
}

/* Offset of an address in a buffer over all memory. */
size_t address(const void *pointer)
{
    return reinterpret_cast<size_t>(pointer);
}

size_t element_bytes(const msdu_op &op)
{
    return op.dtype == MSDU_FLOAT64 ? sizeof(double) : sizeof(float);
}

/* A constant count lets compilers vectorize at -O2 as well. */
template <typename T> void add_whole(T *__restrict sum, const T *__restrict part)
{
    for (size_t i = 0; i < kSumCount; i++) {
        sum[i] += part[i];
    }
}

template <typename T> void add(T *sum, const T *part, size_t count)
{
    if (count == kSumCount) {
        add_whole(sum, part);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        sum[i] += part[i];
    }
}

/* Sum the parts of all ranks in rank order into the own one. Part `own` lies in place. */
template <typename T> void sum_parts(T *place, const T *parts, size_t count, int ranks, int own)
{
    T sum[kSumCount];
    for (size_t first = 0; first < count; first += kSumCount) {
        const size_t length = std::min(kSumCount, count - first);
        for (int rank = 0; rank < ranks; rank++) {
            const T *part = rank == own ? place : parts + static_cast<size_t>(rank) * count;
            if (rank == 0) {
                std::memcpy(sum, part + first, length * sizeof(T));
            } else {
                add(sum, part + first, length);
            }
        }
        std::memcpy(place + first, sum, length * sizeof(T));
    }
}

void copy_bytes(void *to, const void *from, uint64_t bytes)
{
    if (bytes > 0 && to != from) {
        std::memmove(to, from, static_cast<size_t>(bytes));
    }
}

} // namespace

Lane::Lane(const msdu_host &host, Owner &owner, Context context)
    : host_(host), owner_(owner), context_(std::move(context)), queue_(host.requests + 1),
      prints_(host.requests + 1)
{
    const size_t ranks = static_cast<size_t>(host.ranks);
    const size_t part_bytes = kBlockBytes / ranks + sizeof(double);
    for (Stage &stage : stages_) {
        for (Buffer *buffer :
             {&stage.scatter_recv, &stage.scatter_send, &stage.gather_recv, &stage.gather_send}) {
            *buffer = context_->createUnboundBuffer(nullptr, SIZE_MAX);
        }
        stage.scratch = std::make_unique<unsigned char[]>(part_bytes * ranks);
    }
    sigset_t all;
    sigset_t before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        thread_ = std::thread(&Lane::run, this);
    } catch (...) {
        (void)pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Lane::~Lane()
{
    stop(); /* the others of a group whose last channel could not be made were told nothing */
}

void Lane::push(msdu_req *req)
{
    const uint64_t sequence = req->op.sequence;
    const uint64_t mark = (sequence << 32) | msdu__op_print(&req->op, host_.ranks);
    prints_[sequence % prints_.size()].store(mark, std::memory_order_relaxed);
    started_.store(sequence + 1, std::memory_order_relaxed);
    {
        const std::lock_guard<std::mutex> guard(lock_);
        queue_[(queue_first_ + queue_count_) % queue_.size()] = req;
        queue_count_++;
    }
    changed_.notify_one();
}

void Lane::interrupt()
{
    for (Stage &stage : stages_) {
        for (Buffer *buffer :
             {&stage.scatter_recv, &stage.scatter_send, &stage.gather_recv, &stage.gather_send}) {
            (*buffer)->abortWaitRecv();
            (*buffer)->abortWaitSend();
        }
    }
}

void Lane::stop()
{
    {
        const std::lock_guard<std::mutex> guard(lock_);
        is_stopping_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) {
        thread_.join();
    }
}

bool Lane::is_stalled(uint64_t time_ns, uint64_t *sequence_out) const
{
    const uint64_t since = waiting_since_.load(std::memory_order_relaxed);
    if (since == 0 || time_ns < since + host_.deadline_ns) {
        return false;
    }
    *sequence_out = waiting_sequence_.load(std::memory_order_relaxed);
    return true;
}

uint64_t Lane::progress(uint64_t sequence, uint32_t *print_out) const
{
    const uint64_t mark = prints_[sequence % prints_.size()].load(std::memory_order_relaxed);
    const bool is_known = mark != 0 && (mark >> 32) == (sequence & UINT32_MAX);
    *print_out = is_known ? static_cast<uint32_t>(mark) : 0;
    return started_.load(std::memory_order_relaxed);
}

/* Operations that differ between ranks never meet in a slot: they stall and are told apart. */
uint64_t Lane::slot(const Block &block, unsigned phase) const
{
    const msdu_op &op = block.req->op;
    return (static_cast<uint64_t>(msdu__op_print(&op, host_.ranks) >> 8) << 44) |
           ((op.sequence & UINT64_C(0x3ffffff)) << 18) | ((block.index & 0xffff) << 2) | phase;
}

/* First byte, within the block, of the part that a rank sums; rank `ranks` gives the end. */
uint64_t Lane::part(const Block &block, int rank) const
{
    const uint64_t unit = element_bytes(block.req->op);
    const uint64_t ranks = static_cast<uint64_t>(host_.ranks);
    const uint64_t each = (block.bytes / unit + ranks - 1) / ranks * unit;
    return std::min(block.bytes, each * static_cast<uint64_t>(rank));
}

/* The next block of the current operation. */
void Lane::cut(Block *block)
{
    const msdu_op &op = current_->op;
    *block = Block{};
    block->req = current_;
    block->stage = &stages_[next_stage_];
    block->offset = current_offset_;
    block->index = current_index_;
    block->is_last = true;
    if (op.kind == MSDU_OP_ALLREDUCE) {
        const uint64_t left = op.count * element_bytes(op) - current_offset_;
        block->bytes = std::min(left, kBlockBytes);
        block->is_last = block->bytes == left;
    }
    next_stage_ ^= 1U;
    current_offset_ += block->bytes;
    current_index_++;
    current_ = block->is_last ? nullptr : current_;
}

/* Take the next block; without one, wait for it if nothing else is under way. */
bool Lane::take(Block *block, bool may_wait, bool *is_over)
{
    if (current_ == nullptr) {
        std::unique_lock<std::mutex> guard(lock_);
        if (may_wait) {
            changed_.wait(guard, [this] { return queue_count_ > 0 || is_stopping_; });
        }
        *is_over = is_stopping_ && queue_count_ == 0;
        if (queue_count_ == 0) {
            return false;
        }
        current_ = queue_[queue_first_];
        queue_first_ = (queue_first_ + 1) % queue_.size();
        queue_count_--;
        current_offset_ = 0;
        current_index_ = 0;
    }
    cut(block);
    return true;
}

void Lane::run()
{
    Block previous{};
    bool has_previous = false;
    bool is_over = false;
    while (!is_over || has_previous) {
        Block block{};
        const bool has_block = take(&block, !has_previous, &is_over);
        try {
            if (owner_.has_failed()) {
                throw Interrupted();
            }
            if (has_block) {
                post(&block);
            }
            /* Before the next sum: a peer's sum of this block comes before its part of the next
             * on the same connection, so nothing is lost, and its operation ends earlier. */
            if (has_previous) {
                finish(&previous);
                // NOLINTNEXTLINE(clang-analyzer-deadcode.DeadStores): read if reduce() throws
                has_previous = false;
            }
            if (has_block) {
                reduce(&block);
            }
            previous = block;
            has_previous = has_block;
            continue;
        } catch (const Interrupted &) {
            (void)owner_.fail("");
        } catch (const std::exception &error) {
            (void)owner_.fail(error.what());
        }
        abandon(&block, has_block, &previous, has_previous);
        has_previous = false;
    }
}

/* The group failed: nothing may touch the caller's memory any more, then its operations end. */
void Lane::abandon(Block *block, bool has_block, Block *previous, bool has_previous)
{
    const msdu_status status = owner_.fail("");
    waiting_since_.store(0, std::memory_order_relaxed);
    try {
        context_->closeConnections();
    } catch (const std::exception &) {
        /* Closed already. */
    }
    if (has_previous && (!has_block || previous->req != block->req)) {
        owner_.complete(previous->req, status);
    }
    if (has_block) {
        owner_.complete(block->req, status);
    }
    current_ = nullptr;
}

void Lane::post(Block *block)
{
    switch (block->req->op.kind) {
    case MSDU_OP_ALLREDUCE:
        post_allreduce(block);
        break;
    case MSDU_OP_ALLTOALL:
        post_exchange(block);
        break;
    case MSDU_OP_ALLGATHER:
        post_gather(block);
        break;
    default:
        post_broadcast(block);
        break;
    }
}

/*
 * All receives are announced first: Gloo sends data only to a receive that it knows of. A gathered
 * part may be announced while its place is still being sent: rank j sends its sum only after it
 * has received that part from us.
 */
void Lane::post_allreduce(Block *block)
{
    unsigned char *place = static_cast<unsigned char *>(block->req->op.recv) + block->offset;
    const uint64_t own_bytes = part(*block, host_.rank + 1) - part(*block, host_.rank);
    Stage &stage = *block->stage;
    for (int away = 1; away < host_.ranks && own_bytes > 0; away++) {
        const int peer = (host_.rank + away) % host_.ranks;
        const unsigned char *scratch =
            stage.scratch.get() + static_cast<uint64_t>(peer) * own_bytes;
        stage.scatter_recv->recv(peer, slot(*block, kScatter), address(scratch), own_bytes);
        block->scatter_recvs++;
    }
    for (int away = 1; away < host_.ranks; away++) {
        const int peer = (host_.rank + away) % host_.ranks;
        const uint64_t first = part(*block, peer);
        const uint64_t bytes = part(*block, peer + 1) - first;
        if (bytes > 0) {
            stage.gather_recv->recv(peer, slot(*block, kGather), address(place + first), bytes);
            block->gather_recvs++;
        }
    }
    for (int away = 1; away < host_.ranks; away++) {
        const int peer = (host_.rank + away) % host_.ranks;
        const uint64_t first = part(*block, peer);
        const uint64_t bytes = part(*block, peer + 1) - first;
        if (bytes > 0) {
            stage.scatter_send->send(peer, slot(*block, kScatter), address(place + first), bytes);
            block->scatter_sends++;
        }
    }
}

void Lane::post_exchange(Block *block)
{
    const msdu_op &op = block->req->op;
    const uint64_t own_bytes = op.shares[host_.rank];
    unsigned char *recv = static_cast<unsigned char *>(op.recv);
    const unsigned char *send = static_cast<const unsigned char *>(op.send);
    Stage &stage = *block->stage;
    for (int peer = 0; peer < host_.ranks && own_bytes > 0; peer++) {
        if (peer != host_.rank) {
            const unsigned char *to = recv + static_cast<uint64_t>(peer) * own_bytes;
            stage.gather_recv->recv(peer, slot(*block, kGather), address(to), own_bytes);
            block->gather_recvs++;
        }
    }
    uint64_t first = 0;
    for (int peer = 0; peer < host_.ranks; peer++) {
        if (op.shares[peer] == 0) {
            continue;
        }
        if (peer == host_.rank) {
            copy_bytes(recv + static_cast<uint64_t>(peer) * own_bytes, send + first, own_bytes);
        } else {
            stage.gather_send->send(peer, slot(*block, kGather), address(send + first),
                                    op.shares[peer]);
            block->gather_sends++;
        }
        first += op.shares[peer];
    }
}

void Lane::post_gather(Block *block)
{
    const msdu_op &op = block->req->op;
    const uint64_t own_bytes = op.shares[host_.rank];
    unsigned char *recv = static_cast<unsigned char *>(op.recv);
    Stage &stage = *block->stage;
    uint64_t first = 0;
    for (int peer = 0; peer < host_.ranks; peer++) {
        if (op.shares[peer] == 0) {
            continue;
        }
        if (peer == host_.rank) {
            copy_bytes(recv + first, op.send, own_bytes);
        } else {
            stage.gather_recv->recv(peer, slot(*block, kGather), address(recv + first),
                                    op.shares[peer]);
            block->gather_recvs++;
        }
        first += op.shares[peer];
    }
    for (int away = 1; away < host_.ranks && own_bytes > 0; away++) {
        const int peer = (host_.rank + away) % host_.ranks;
        stage.gather_send->send(peer, slot(*block, kGather), address(op.send), own_bytes);
        block->gather_sends++;
    }
}

void Lane::post_broadcast(Block *block)
{
    const msdu_op &op = block->req->op;
    Stage &stage = *block->stage;
    if (op.count == 0) {
        return;
    }
    if (host_.rank > 0) {
        stage.gather_recv->recv(0, slot(*block, kGather), address(op.recv), op.count);
        block->gather_recvs++;
        return;
    }
    for (int peer = 1; peer < host_.ranks; peer++) {
        stage.gather_send->send(peer, slot(*block, kGather), address(op.recv), op.count);
        block->gather_sends++;
    }
}

/* Add what was scattered to this rank, and send the sum to all. */
void Lane::reduce(Block *block)
{
    const msdu_op &op = block->req->op;
    Stage &stage = *block->stage;
    if (op.kind != MSDU_OP_ALLREDUCE) {
        return;
    }
    const uint64_t first = part(*block, host_.rank);
    const uint64_t bytes = part(*block, host_.rank + 1) - first;
    unsigned char *place = static_cast<unsigned char *>(op.recv) + block->offset + first;
    wait(Way::kRecv, *block, stage.scatter_recv, &block->scatter_recvs);
    if (bytes == 0) {
        return;
    }
    if (op.dtype == MSDU_FLOAT64) {
        sum_parts(reinterpret_cast<double *>(place),
                  reinterpret_cast<const double *>(stage.scratch.get()), bytes / sizeof(double),
                  host_.ranks, host_.rank);
    } else {
        sum_parts(reinterpret_cast<float *>(place),
                  reinterpret_cast<const float *>(stage.scratch.get()), bytes / sizeof(float),
                  host_.ranks, host_.rank);
    }
    for (int away = 1; away < host_.ranks; away++) {
        const int peer = (host_.rank + away) % host_.ranks;
        stage.gather_send->send(peer, slot(*block, kGather), address(place), bytes);
        block->gather_sends++;
    }
}

/* Wait for everything of a block; the last block ends its operation. */
void Lane::finish(Block *block)
{
    Stage &stage = *block->stage;
    wait(Way::kRecv, *block, stage.gather_recv, &block->gather_recvs);
    wait(Way::kSend, *block, stage.scatter_send, &block->scatter_sends);
    wait(Way::kSend, *block, stage.gather_send, &block->gather_sends);
    if (block->is_last) {
        owner_.complete(block->req, MSDU_OK);
    }
}

void Lane::wait(Way way, const Block &block, const Buffer &buffer, int *count)
{
    const auto limit = std::chrono::milliseconds(host_.deadline_ns / 1000000 + kGraceMs);
    waiting_sequence_.store(block.req->op.sequence, std::memory_order_relaxed);
    for (; *count > 0; (*count)--) {
        waiting_since_.store(now_ns(), std::memory_order_relaxed);
        if (!(way == Way::kRecv ? buffer->waitRecv(limit) : buffer->waitSend(limit))) {
            throw Interrupted();
        }
    }
    waiting_since_.store(0, std::memory_order_relaxed);
}

} // namespace msdu_gloo
