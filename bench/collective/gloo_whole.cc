/* SPDX-License-Identifier: Apache-2.0 */
/* One whole gloo::allreduce with Gloo's own defaults; the library is not involved. */
#include "gloo_whole.h"

#include <cstdio>
#include <exception>
#include <memory>
#include <string>

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

namespace
{

using Device = std::shared_ptr<gloo::transport::Device>;

struct Group {
    Device device;
    std::shared_ptr<gloo::rendezvous::Context> context;
    uint32_t tag;
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

void *open_group(int rank, int ranks, const char *folder, const char *interface, char *why,
                 size_t why_bytes) noexcept
{
    try {
        gloo::transport::tcp::attr attr;
        attr.iface = interface;
        auto group = std::make_unique<Group>();
        group->device = gloo::transport::tcp::CreateDevice(attr);
        group->context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
        const std::shared_ptr<gloo::rendezvous::Store> store =
            std::make_shared<gloo::rendezvous::FileStore>(folder);
        connect_mesh(*group->context, store, group->device, 0);
        group->tag = 0;
        return group.release();
    } catch (const std::exception &error) {
        std::snprintf(why, why_bytes, "%s", error.what());
        return nullptr;
    }
}

int allreduce(void *opaque, float *values, size_t count, char *why, size_t why_bytes) noexcept
{
    Group *group = static_cast<Group *>(opaque);
    void (*const sum)(void *, const void *, const void *, size_t) = &gloo::sum<float>;
    try {
        gloo::AllreduceOptions options(group->context);
        options.setOutput(values, count);
        options.setReduceFunction(sum);
        options.setTag(group->tag++);
        gloo::allreduce(options);
        return 0;
    } catch (const std::exception &error) {
        std::snprintf(why, why_bytes, "%s", error.what());
        return -1;
    }
}

void close_group(void *opaque) noexcept
{
    delete static_cast<Group *>(opaque);
}

} // namespace

extern "C" __attribute__((visibility("default")))
const msdu__gloo_whole msdu__gloo_whole_table = {open_group, allreduce, close_group};
