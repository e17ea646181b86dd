/* SPDX-License-Identifier: Apache-2.0 */
/* Gloo's connections between all ranks, made through the hub. The only file that knows versions. */
#include "gloo_mesh.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <utility>
#include <vector>

#include <dirent.h>
#include <sys/resource.h>

#include <gloo/config.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#ifndef GLOO_HAVE_TRANSPORT_TCP_TLS /* until 2020 */
#define GLOO_HAVE_TRANSPORT_TCP_TLS 0
#endif
#if GLOO_HAVE_TRANSPORT_TCP_TLS
#include <gloo/transport/tcp/tls/device.h>
#endif

namespace msdu_gloo
{

namespace
{

constexpr uint64_t kNsPerMs = 1000000;
constexpr uint64_t kSpareDescriptors = 16; /* that connecting needs for a while */
constexpr std::chrono::milliseconds kConnectMin(200);
constexpr uint64_t kCheckSlot = UINT64_C(0x6d73647500000000); /* used once, before all others */

bool is_set(const char *text)
{
    return text != nullptr && text[0] != '\0';
}

std::chrono::milliseconds deadline(const msdu_host &host)
{
    return std::chrono::milliseconds(static_cast<int64_t>(host.deadline_ns / kNsPerMs + 1));
}

/* Gloo's store on top of the hub's; each channel has keys of its own. */
class HubStore : public gloo::rendezvous::Store
{
  public:
    HubStore(msdu__hub *hub, uint32_t lane)
        : hub_(hub), prefix_("gloo/" + std::to_string(lane) + "/")
    {
    }

    void set(const std::string &key, const std::vector<char> &data) override
    {
        const std::string full = prefix_ + key;
        check(msdu__hub_set(hub_, full.c_str(), data.data(), data.size()));
    }

    std::vector<char> get(const std::string &key) override
    {
        const std::string full = prefix_ + key;
        void *data = nullptr;
        size_t bytes = 0;
        check(msdu__hub_get(hub_, full.c_str(), &data, &bytes));
        const std::unique_ptr<void, decltype(&std::free)> owner(data, &std::free);
        const char *first = static_cast<const char *>(data);
        return std::vector<char>(first, first + bytes);
    }

    void wait(const std::vector<std::string> &keys) override
    {
        for (const std::string &key : keys) {
            (void)get(key);
        }
    }

    /* get() itself waits no longer than the job's deadline. */
    void wait(const std::vector<std::string> &keys, const std::chrono::milliseconds &) override
    {
        wait(keys);
    }

  private:
    static void check(msdu_status status)
    {
        if (status != MSDU_OK) {
            throw Failure(status, ""); /* the hub has set the text */
        }
    }

    msdu__hub *hub_;
    std::string prefix_;
};

/* Up to 2022 connectFullMesh() takes a reference to the store, later a shared pointer. */
template <typename Mesh, typename Shared>
auto connect_mesh(Mesh &mesh, const Shared &store, Device &device, int)
    -> decltype(mesh.connectFullMesh(store, device))
{
    return mesh.connectFullMesh(store, device);
}

template <typename Mesh, typename Shared>
auto connect_mesh(Mesh &mesh, const Shared &store, Device &device, long)
    -> decltype(mesh.connectFullMesh(*store, device))
{
    return mesh.connectFullMesh(*store, device);
}

using Badge = std::array<uint8_t, MSDU__HUB_NONCE_BYTES>;

/* What rank `from` shows rank `to` on the connection of a channel. */
Badge badge(msdu__hub *hub, int from, int to, uint32_t lane)
{
    Badge mac{};
    const std::array<uint32_t, 3> said{static_cast<uint32_t>(from), static_cast<uint32_t>(to),
                                       lane};
    if (!msdu__hub_sign(hub, said.data(), sizeof(said), mac.data())) {
        throw Failure(MSDU_ERR_BACKEND, "gloo: HMAC-SHA256 is not available");
    }
    return mac;
}

/* One peer's part of the check. */
struct Check {
    Badge shown;
    Badge wanted;
    Badge seen;
    std::unique_ptr<gloo::transport::UnboundBuffer> send;
    std::unique_ptr<gloo::transport::UnboundBuffer> recv;
};

/* Wait for a peer's badge and compare. */
void check_badge(const msdu_host &host, const Check &check, int peer)
{
    const std::string name = "gloo: the data connection to rank " + std::to_string(peer);
    try {
        (void)check.recv->waitRecv(deadline(host));
        (void)check.send->waitSend(deadline(host));
    } catch (const std::exception &error) {
        throw Failure(MSDU_ERR_BACKEND, name + " fails: " + plain_text(error.what()));
    }
    if (check.seen != check.wanted) {
        throw Failure(MSDU_ERR_DENIED, name + " does not end at the rank that was admitted");
    }
}

/* A process that got into Gloo's own listener cannot show the badge of an admitted rank. */
void check_peers(const msdu_host &host, msdu__hub *hub, const Context &context, uint32_t lane)
{
    std::vector<Check> checks(static_cast<size_t>(host.ranks));
    for (int peer = 0; peer < host.ranks; peer++) {
        Check &check = checks[static_cast<size_t>(peer)];
        if (peer == host.rank) {
            continue;
        }
        check.shown = badge(hub, host.rank, peer, lane);
        check.wanted = badge(hub, peer, host.rank, lane);
        check.send = context->createUnboundBuffer(check.shown.data(), check.shown.size());
        check.recv = context->createUnboundBuffer(check.seen.data(), check.seen.size());
        check.recv->recv(peer, kCheckSlot);
        check.send->send(peer, kCheckSlot);
    }
    for (int peer = 0; peer < host.ranks; peer++) {
        if (peer != host.rank) {
            check_badge(host, checks[static_cast<size_t>(peer)], peer);
        }
    }
}

} // namespace

PipeGuard::PipeGuard() : was_pending_(false), was_blocked_(false)
{
    sigset_t pipe;
    sigset_t before;
    sigset_t pending;
    (void)sigemptyset(&pipe);
    (void)sigaddset(&pipe, SIGPIPE);
    (void)sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    (void)pthread_sigmask(SIG_BLOCK, &pipe, &before);
    was_blocked_ = sigismember(&before, SIGPIPE) == 1;
}

PipeGuard::~PipeGuard()
{
    sigset_t pipe;
    const struct timespec at_once = {0, 0};
    (void)sigemptyset(&pipe);
    (void)sigaddset(&pipe, SIGPIPE);
    if (!was_pending_) {
        while (sigtimedwait(&pipe, nullptr, &at_once) == SIGPIPE) {
        }
    }
    if (!was_blocked_) {
        (void)pthread_sigmask(SIG_UNBLOCK, &pipe, nullptr);
    }
}

/* All signals are left to the trainer's threads; a new thread takes over this mask. */
class SignalGuard
{
  public:
    SignalGuard()
    {
        sigset_t all;
        (void)sigfillset(&all);
        (void)pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalGuard()
    {
        (void)pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
    SignalGuard(const SignalGuard &) = delete;
    SignalGuard &operator=(const SignalGuard &) = delete;

  private:
    sigset_t before_;
};

Device make_device(const msdu_host &host, const char *address)
{
    const SignalGuard guard; /* the device starts Gloo's thread */
    gloo::transport::tcp::attr attr;
    if (is_set(host.interface)) {
        attr.iface = host.interface;
    } else {
        attr.hostname = address;
    }
    if (!is_set(host.tls_key) && !is_set(host.tls_cert) && !is_set(host.tls_ca)) {
        return gloo::transport::tcp::CreateDevice(attr);
    }
#if GLOO_HAVE_TRANSPORT_TCP_TLS
    const auto text = [](const char *file) { return std::string(file == nullptr ? "" : file); };
    return gloo::transport::tcp::tls::CreateDevice(attr, text(host.tls_key), text(host.tls_cert),
                                                   text(host.tls_ca), "");
#else
    throw Failure(MSDU_ERR_UNSUPPORTED, "gloo: tls_key, tls_cert and tls_ca are set, but this "
                                        "Gloo was built without its TLS transport");
#endif
}

/* Descriptors that this process may still open; where nothing tells, more than anyone needs. */
uint64_t descriptors_left()
{
    struct rlimit limit {
    };
    DIR *open = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? opendir("/proc/self/fd") : nullptr;
    if (open == nullptr) {
        return UINT64_MAX;
    }
    uint64_t used = 0;
    while (readdir(open) != nullptr) { // NOLINT(concurrency-mt-unsafe): its own
        used++;
    }
    (void)closedir(open);
    return limit.rlim_cur > used ? limit.rlim_cur - used : 0;
}

void check_descriptors(const msdu_host &host, uint32_t lanes)
{
    const uint64_t needed = lanes * static_cast<uint64_t>(host.ranks - 1) + kSpareDescriptors;
    const uint64_t left = descriptors_left();
    if (needed > left) {
        throw Failure(MSDU_ERR_UNSUPPORTED,
                      "gloo: connections of " + std::to_string(host.ranks) + " ranks on " +
                          std::to_string(lanes) + " channels take " + std::to_string(needed) +
                          " descriptors, and this process may open " + std::to_string(left) +
                          " more: raise its limit (ulimit -n), or lower setting lanes");
    }
}

Context make_context(const msdu_host &host, msdu__hub *hub, Device &device, uint32_t lane)
{
    auto context = std::make_shared<gloo::rendezvous::Context>(host.rank, host.ranks);
    const std::shared_ptr<gloo::rendezvous::Store> store = std::make_shared<HubStore>(hub, lane);
    /* Gloo waits five times this long for a connection; later waits bring their own limit. */
    context->setTimeout(std::max(deadline(host) / 5, kConnectMin));
    connect_mesh(*context, store, device, 0);
    check_peers(host, hub, context, lane);
    return context;
}

std::string plain_text(const std::string &what)
{
    std::string text = what;
    const size_t end = text.find("] ");
    if (!text.empty() && text[0] == '[' && end != std::string::npos) {
        text.erase(0, end + 2);
    }
    for (char &one : text) {
        one = one == '\n' ? ' ' : one;
    }
    return text;
}

} // namespace msdu_gloo
