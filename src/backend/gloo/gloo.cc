/* SPDX-License-Identifier: Apache-2.0 */
/* Backend module "gloo": CPU collectives between processes over Gloo. No entry throws. */
#include "backend/local_move.h"
#include "gloo_lane.h"
#include "members/membership.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include <gloo/config.h>

#define MSDU_TEXT(x)   #x
#define MSDU_NUMBER(x) MSDU_TEXT(x)
#define GLOO_VERSION_TEXT                                                                          \
    MSDU_NUMBER(GLOO_VERSION_MAJOR)                                                                \
    "." MSDU_NUMBER(GLOO_VERSION_MINOR) "." MSDU_NUMBER(GLOO_VERSION_PATCH)

namespace
{

using msdu_gloo::Failure;
using msdu_gloo::Lane;

constexpr uint64_t kByeNs = 700000000;      /* close() waits this long for the others */
constexpr uint64_t kVerdictNs = 1500000000; /* an obituary follows a broken connection in this */

/* Turn exceptions into a status and text. An empty text means that it was set already. */
template <typename Body> msdu_status guarded(const msdu_host *host, Body body) noexcept
{
    try {
        return body();
    } catch (const Failure &failure) {
        const char *text = failure.what();
        return text[0] == '\0' ? failure.status() : host->fail(failure.status(), text);
    } catch (const std::bad_alloc &) {
        return host->fail(MSDU_ERR_NO_MEMORY, "gloo: out of memory");
    } catch (const std::exception &error) {
        try {
            const std::string text = "gloo: " + msdu_gloo::plain_text(error.what());
            return host->fail(MSDU_ERR_BACKEND, text.c_str());
        } catch (...) {
            return host->fail(MSDU_ERR_BACKEND, "gloo: unknown failure");
        }
    } catch (...) {
        return host->fail(MSDU_ERR_BACKEND, "gloo: unknown failure");
    }
}

} // namespace

/* Lock order: lock_ is a leaf; it is never held across a call of Gloo, the hub or the host. */
struct msdu_comm final : public msdu_gloo::Owner {
    explicit msdu_comm(const msdu_host *given);
    ~msdu_comm() override;
    void connect();
    void split(uint32_t group, const int32_t *colors, uint32_t lanes);
    msdu_req *start(const msdu_op &op);
    msdu_status test(msdu_req *req, uint64_t timeout_ns);
    void abort(msdu_status status, const char *why);
    void leave();

    msdu_status fail(const std::string &what) override;
    bool has_failed() const override;
    void complete(msdu_req *req, msdu_status status) override;

    const msdu_host *host;

  private:
    /* One of the groups besides the world, as a job of its own over the same hub. */
    struct Group {
        msdu_host host{};
        uint32_t first_id = 0; /* of its channels, in the words of the hub: no other group has it */
        std::vector<std::unique_ptr<Lane>> lanes;
    };

    void connect_lanes(const msdu_host &group, uint32_t first_id, uint32_t count,
                       std::vector<std::unique_ptr<Lane>> &lanes);
    template <typename Body> void each_lane(Body body) const;
    static bool is_stalled(void *user, uint64_t now_ns, uint32_t *lane_out, uint64_t *sequence_out);
    static uint64_t progress(void *user, uint32_t lane, uint64_t sequence, uint32_t *print_out);
    static void failed(void *user);
    void note(msdu_status status, const char *text);
    void give_up(const std::string &what);

    msdu__hub *hub_ = nullptr;
    msdu__hub_watch watch_;
    msdu_gloo::Device device_;
    std::vector<std::unique_ptr<Lane>> lanes_;
    std::array<std::unique_ptr<Group>, MSDU_GROUPS> groups_; /* nullptr: this rank is in none */
    std::vector<msdu_req> reqs_;
    std::atomic<bool> is_failing_{false};

    std::mutex lock_; /* guards the rest */
    std::condition_variable done_;
    msdu_req *free_ = nullptr;
    size_t in_flight_ = 0;
    msdu_status status_ = MSDU_OK;
    std::string text_;
};

msdu_comm::msdu_comm(const msdu_host *given)
    : host(given), watch_{this, is_stalled, progress, failed}, reqs_(given->requests)
{
    text_.reserve(MSDU__HUB_TEXT_BYTES);
    for (msdu_req &req : reqs_) {
        req.next_free = free_;
        free_ = &req;
    }
}

/* The hub goes last: it tells the others why connections break. */
msdu_comm::~msdu_comm()
{
    if (hub_ != nullptr) {
        msdu__hub_watch_set(hub_, nullptr);
    }
    each_lane([](uint32_t, Lane &lane) { lane.stop(); });
    lanes_.clear();
    for (auto &group : groups_) {
        group.reset();
    }
    device_.reset();
    msdu__hub_close(hub_);
}

/* All channels of this rank with their numbers, which are the same for all who share them. */
template <typename Body> void msdu_comm::each_lane(Body body) const
{
    for (uint32_t lane = 0; lane < lanes_.size(); lane++) {
        body(lane, *lanes_[lane]);
    }
    for (const auto &group : groups_) {
        for (uint32_t lane = 0; group != nullptr && lane < group->lanes.size(); lane++) {
            body(group->first_id + lane, *group->lanes[lane]);
        }
    }
}

/* Channels among the ranks of a group; where one cannot be made the other ranks are told. */
void msdu_comm::connect_lanes(const msdu_host &group, uint32_t first_id, uint32_t count,
                              std::vector<std::unique_ptr<Lane>> &lanes)
{
    const msdu_gloo::PipeGuard guard;
    try {
        if (device_ == nullptr) {
            device_ = msdu_gloo::make_device(*host, msdu__hub_address(hub_));
        }
        msdu_gloo::check_descriptors(group, count);
        for (uint32_t lane = 0; lane < count && group.ranks > 1; lane++) {
            auto context = msdu_gloo::make_context(group, hub_, device_, first_id + lane);
            lanes.push_back(std::make_unique<Lane>(group, *this, std::move(context)));
        }
    } catch (const Failure &failure) {
        give_up(failure.what());
        throw;
    } catch (const std::exception &error) {
        give_up(msdu_gloo::plain_text(error.what()));
        throw;
    }
}

/* The hub's thread must not look at channels while they are made. */
void msdu_comm::split(uint32_t number, const int32_t *colors, uint32_t lanes)
{
    const int32_t own = colors[host->rank];
    if (number == MSDU_GROUP_WORLD || number >= MSDU_GROUPS || lanes > host->lanes ||
        groups_[number] != nullptr) {
        throw Failure(MSDU_ERR_INVALID, "gloo: no such group, or it is there already");
    }
    if (own < 0) {
        return;
    }
    auto group = std::make_unique<Group>();
    group->host = *host;
    group->host.rank = static_cast<int32_t>(std::count(colors, colors + host->rank, own));
    group->host.ranks = static_cast<int32_t>(std::count(colors, colors + host->ranks, own));
    const auto first = static_cast<uint32_t>(std::find(colors, colors + host->ranks, own) - colors);
    group->first_id = host->lanes * (1 + (number - 1) * static_cast<uint32_t>(host->ranks) + first);
    if (hub_ != nullptr) {
        connect_lanes(group->host, group->first_id, lanes, group->lanes);
        msdu__hub_watch_set(hub_, nullptr);
    }
    groups_[number] = std::move(group);
    if (hub_ != nullptr) {
        msdu__hub_watch_set(hub_, &watch_);
    }
}

void msdu_comm::connect()
{
    const msdu_status status = msdu__hub_open(host, &hub_);
    if (status != MSDU_OK) {
        throw Failure(status, "");
    }
    connect_lanes(*host, 0, host->lanes, lanes_);
    msdu__hub_watch_set(hub_, &watch_);
    const std::string text = "gloo " GLOO_VERSION_TEXT ": " + std::to_string(host->ranks) +
                             " ranks, " + std::to_string(host->lanes) + " lanes, this one at " +
                             msdu__hub_address(hub_);
    if (host->log != nullptr) {
        host->log(host->user, MSDU_LOG_INFO, text.c_str());
    }
}

/* Connecting failed: if another rank is the cause, the hub says so; else the others are told. */
void msdu_comm::give_up(const std::string &what)
{
    char text[MSDU__HUB_TEXT_BYTES];
    const msdu_status status = msdu__hub_verdict(hub_, kVerdictNs, text);
    if (status != MSDU_OK) {
        throw Failure(status, text);
    }
    msdu__hub_abort(hub_, MSDU_ERR_PEER_LOST, what.empty() ? "it could not connect" : what.c_str());
}

/* Keep the first cause. */
void msdu_comm::note(msdu_status status, const char *text)
{
    const std::lock_guard<std::mutex> guard(lock_);
    if (status_ == MSDU_OK) {
        status_ = status;
        text_ = text;
    }
}

bool msdu_comm::has_failed() const
{
    return is_failing_.load(std::memory_order_acquire);
}

/* A channel met `what`, or was interrupted: the hub knows best why, if given a moment. */
msdu_status msdu_comm::fail(const std::string &what)
{
    {
        const std::lock_guard<std::mutex> guard(lock_);
        if (status_ != MSDU_OK) {
            return status_;
        }
    }
    char text[MSDU__HUB_TEXT_BYTES];
    msdu_status status = msdu__hub_verdict(hub_, kVerdictNs, text);
    if (status != MSDU_OK) {
        note(status, text);
    } else {
        const std::string plain = "gloo: " + msdu_gloo::plain_text(what);
        note(MSDU_ERR_BACKEND, plain.c_str());
        msdu__hub_abort(hub_, MSDU_ERR_PEER_LOST, plain.c_str());
    }
    failed(this);
    const std::lock_guard<std::mutex> guard(lock_);
    return status_;
}

void msdu_comm::complete(msdu_req *req, msdu_status status)
{
    {
        const std::lock_guard<std::mutex> guard(lock_);
        req->is_done = true;
        req->status = status;
    }
    done_.notify_all();
    if (host->notify != nullptr) {
        host->notify(host->user);
    }
}

msdu_req *msdu_comm::start(const msdu_op &op)
{
    char text[MSDU__HUB_TEXT_BYTES];
    if (!msdu__op_is_valid(&op, text, sizeof(text))) {
        throw Failure(MSDU_ERR_INVALID, text);
    }
    if (has_failed()) {
        const msdu_status status = fail("");
        throw Failure(status, text_);
    }
    if (op.group >= MSDU_GROUPS || (op.group > 0 && groups_[op.group] == nullptr)) {
        throw Failure(MSDU_ERR_INVALID, "gloo: this rank is in no such group");
    }
    const int32_t ranks = op.group == 0 ? host->ranks : groups_[op.group]->host.ranks;
    const auto &lanes = op.group == 0 ? lanes_ : groups_[op.group]->lanes;
    if (op.lane >= (ranks > 1 ? lanes.size() : host->lanes)) {
        throw Failure(MSDU_ERR_INVALID, "gloo: there is no lane " + std::to_string(op.lane));
    }
    msdu_req *req = nullptr;
    {
        const std::lock_guard<std::mutex> guard(lock_);
        req = free_;
        if (req != nullptr) {
            free_ = req->next_free;
            in_flight_++;
        }
    }
    if (req == nullptr) {
        throw Failure(MSDU_ERR_STATE, "gloo: more operations in flight than agreed");
    }
    req->op = op;
    req->is_done = false;
    if (ranks == 1) {
        const msdu_op *ops[] = {&req->op};
        msdu__op_move(ops, 1);
        complete(req, MSDU_OK);
    } else {
        lanes[op.lane]->push(req);
    }
    return req;
}

msdu_status msdu_comm::test(msdu_req *req, uint64_t timeout_ns)
{
    std::unique_lock<std::mutex> guard(lock_);
    if (!req->is_done && timeout_ns > 0) {
        const uint64_t longest = UINT64_C(3600000000000);
        const auto span = std::chrono::nanoseconds(timeout_ns < longest ? timeout_ns : longest);
        (void)done_.wait_for(guard, span, [req] { return req->is_done; });
    }
    if (!req->is_done) {
        return MSDU_IN_PROGRESS;
    }
    const msdu_status status = req->status;
    req->next_free = free_;
    free_ = req;
    in_flight_--;
    guard.unlock();
    /* The text does not change once a request has failed. */
    return status == MSDU_OK ? MSDU_OK : host->fail(status, text_.c_str());
}

void msdu_comm::abort(msdu_status status, const char *why)
{
    if (hub_ != nullptr) {
        msdu__hub_abort(hub_, status, why == nullptr ? "no cause given" : why);
    }
}

/* Leave in peace if nothing is in flight: closing sockets early may reset what others still read.
 */
void msdu_comm::leave()
{
    if (hub_ == nullptr || has_failed()) {
        return;
    }
    bool is_idle = false;
    {
        const std::lock_guard<std::mutex> guard(lock_);
        is_idle = in_flight_ == 0;
    }
    if (is_idle) {
        msdu__hub_bye(hub_, kByeNs);
    } else {
        msdu__hub_abort(hub_, MSDU_ERR_PEER_LOST, "it left the group with operations in flight");
    }
}

bool msdu_comm::is_stalled(void *user, uint64_t now_ns, uint32_t *lane_out, uint64_t *sequence_out)
{
    const msdu_comm *comm = static_cast<const msdu_comm *>(user);
    bool is_any = false;
    comm->each_lane([&](uint32_t number, const Lane &lane) {
        if (!is_any && lane.is_stalled(now_ns, sequence_out)) {
            *lane_out = number;
            is_any = true;
        }
    });
    return is_any;
}

uint64_t msdu_comm::progress(void *user, uint32_t lane, uint64_t sequence, uint32_t *print_out)
{
    const msdu_comm *comm = static_cast<const msdu_comm *>(user);
    /* who is not in the group of that channel is behind nobody */
    uint64_t started = lane < comm->host->lanes ? 0 : UINT64_MAX;
    *print_out = 0;
    comm->each_lane([&](uint32_t number, const Lane &one) {
        started = number == lane ? one.progress(sequence, print_out) : started;
    });
    return started;
}

void msdu_comm::failed(void *user)
{
    msdu_comm *comm = static_cast<msdu_comm *>(user);
    comm->is_failing_.store(true, std::memory_order_release);
    comm->each_lane([](uint32_t, Lane &lane) { lane.interrupt(); });
}

namespace
{

msdu_status gloo_open(const msdu_host *host, msdu_comm **comm_out) noexcept
{
    return guarded(host, [host, comm_out] {
        if (host->ranks < 1 || host->rank < 0 || host->rank >= host->ranks ||
            host->job == nullptr || host->lanes == 0) {
            throw Failure(MSDU_ERR_INVALID, "gloo: rank, ranks, job or lanes is not valid");
        }
        auto comm = std::make_unique<msdu_comm>(host);
        if (host->ranks > 1) {
            comm->connect();
        }
        *comm_out = comm.release();
        return MSDU_OK;
    });
}

void gloo_close(msdu_comm *comm) noexcept
{
    if (comm == nullptr) {
        return;
    }
    const msdu_host *host = comm->host;
    (void)guarded(host, [comm] {
        const std::unique_ptr<msdu_comm> owner(comm);
        comm->leave();
        return MSDU_OK;
    });
}

msdu_status gloo_start(msdu_comm *comm, const msdu_op *op, msdu_req **req_out) noexcept
{
    return guarded(comm->host, [comm, op, req_out] {
        *req_out = comm->start(*op);
        return MSDU_OK;
    });
}

msdu_status gloo_test(msdu_comm *comm, msdu_req *req) noexcept
{
    return guarded(comm->host, [comm, req] { return comm->test(req, 0); });
}

msdu_status gloo_wait(msdu_comm *comm, msdu_req *req, uint64_t timeout_ns) noexcept
{
    return guarded(comm->host, [comm, req, timeout_ns] { return comm->test(req, timeout_ns); });
}

void gloo_abort(msdu_comm *comm, msdu_status status, const char *why) noexcept
{
    (void)guarded(comm->host, [comm, status, why] {
        comm->abort(status, why);
        return MSDU_OK;
    });
}

msdu_status gloo_split(msdu_comm *comm, uint32_t group, const int32_t *colors,
                       uint32_t lanes) noexcept
{
    return guarded(comm->host, [comm, group, colors, lanes] {
        comm->split(group, colors, lanes);
        return MSDU_OK;
    });
}

} // namespace

extern "C" MSDU_API const msdu_backend msdu_backend_v2;
const msdu_backend msdu_backend_v2 = {
    sizeof(msdu_backend),
    "gloo",
    GLOO_VERSION_TEXT,
    MSDU_CAP_NOTIFY | MSDU_CAP_RANK_ORDER,
    gloo_open,
    gloo_close,
    gloo_start,
    gloo_test,
    gloo_wait,
    gloo_abort,
    nullptr,
    gloo_split,
    &msdu__membership,
};
