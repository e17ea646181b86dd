/* SPDX-License-Identifier: Apache-2.0 */
/* Gloo's connections between all ranks, made through the hub. The only file that knows versions. */
#ifndef MSDU_GLOO_MESH_H
#define MSDU_GLOO_MESH_H

#include "backend/rendezvous/hub.h"

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include <gloo/rendezvous/context.h>
#include <gloo/transport/device.h>

namespace msdu_gloo
{

using Device = std::shared_ptr<gloo::transport::Device>;
using Context = std::shared_ptr<gloo::rendezvous::Context>;

/* A failure with the status that the C side shall see. */
class Failure : public std::runtime_error
{
  public:
    Failure(msdu_status status, const std::string &text) : std::runtime_error(text), status_(status)
    {
    }
    msdu_status status() const
    {
        return status_;
    }

  private:
    msdu_status status_;
};

/* Blocks SIGPIPE in this thread for its lifetime: Gloo writes to sockets without MSG_NOSIGNAL. */
class PipeGuard
{
  public:
    PipeGuard();
    ~PipeGuard();
    PipeGuard(const PipeGuard &) = delete;
    PipeGuard &operator=(const PipeGuard &) = delete;

  private:
    bool was_pending_;
    bool was_blocked_;
};

/* A device bound to host->interface, or to `address` if there is none; with TLS if set. */
Device make_device(const msdu_host &host, const char *address);

/* Can this process open the connections of so many channels? A failure says what they take. */
void check_descriptors(const msdu_host &host, uint32_t lanes);

/* Connect all ranks for one channel, and check through the new connections who is at their ends. */
Context make_context(const msdu_host &host, msdu__hub *hub, Device &device, uint32_t lane);

/* One line of a Gloo error, without its source file. */
std::string plain_text(const std::string &what);

} // namespace msdu_gloo

#endif
