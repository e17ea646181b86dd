/* SPDX-License-Identifier: Apache-2.0 */
/* Members that come and go, in a build without the rendezvous: refused with the reason. */
#include "members.h"

msdu_status msdu__members_open(const msdu_host *host, const msdu__members_settings *settings,
                               msdu__members **members_out, msdu__epoch *epoch_out)
{
    (void)settings;
    (void)members_out;
    (void)epoch_out;
    return host->fail(MSDU_ERR_UNSUPPORTED, "this libmsdu was built without the rendezvous, so its "
                                            "ranks cannot come and go (MSDU_WITH_GLOO)");
}

msdu_status msdu__members_next(msdu__members *members, const msdu__report *report,
                               msdu__epoch *epoch_out)
{
    (void)members;
    (void)report;
    (void)epoch_out;
    return MSDU_ERR_UNSUPPORTED;
}

bool msdu__members_has_newcomer(msdu__members *members)
{
    (void)members;
    return false;
}

bool msdu__members_is_awaited(msdu__members *members)
{
    (void)members;
    return false;
}

msdu_store msdu__members_store(msdu__members *members)
{
    msdu_store store = MSDU_STORE_INIT;
    (void)members;
    return store;
}

void msdu__members_close(msdu__members *members)
{
    (void)members;
}
