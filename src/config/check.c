/* SPDX-License-Identifier: Apache-2.0 */
/* Rules that join several settings; a single value's range is in the table. */
#include "table.h"

#include <stdio.h>
#include <string.h>

#include "correct/correct.h"

static bool is_late(const msdu__settings *settings)
{
    return settings->overlap == MSDU__OVERLAP_DELAYED ||
           settings->overlap == MSDU__OVERLAP_STREAMED;
}

/* Where nothing is said, a late mean must keep the steps taken meanwhile. */
static bool may_be_late(const msdu__settings *settings)
{
    return is_late(settings) || settings->overlap == MSDU__OVERLAP_AUTO;
}

static msdu_status check_domain(msdu__loader *loader)
{
    const msdu__settings *settings = loader->settings;
    if (settings->commit_tensor && settings->domain != MSDU__DOMAIN_GRADIENT &&
        settings->domain != MSDU__DOMAIN_ACCUMULATED) {
        return msdu__setting_fail(loader, "commit tensor needs domain gradient or accumulated");
    }
    if (settings->commit_tensor && settings->check_finite == MSDU__CHECK_SKIP) {
        return msdu__setting_fail(loader,
                                  "check_finite skip needs commit round: gradients that "
                                  "were released cannot be taken back; check_finite propagate "
                                  "gives NaN to all ranks");
    }
    if (is_late(settings) && settings->domain == MSDU__DOMAIN_GRADIENT) {
        return msdu__setting_fail(loader, "overlap %s does not go with domain gradient",
                                  settings->overlap == MSDU__OVERLAP_DELAYED ? "delayed"
                                                                             : "streamed");
    }
    return MSDU_OK;
}

static msdu_status check_optimizer(msdu__loader *loader)
{
    const msdu__settings *settings = loader->settings;
    bool is_accumulated = settings->domain == MSDU__DOMAIN_ACCUMULATED;
    if (is_accumulated && settings->optimizer != MSDU__OPTIMIZER_SGD) {
        return msdu__setting_fail(loader, "domain accumulated needs optimizer sgd: it is exact "
                                          "for SGD only");
    }
    if (is_accumulated && settings->weight_decay > 0 && !(settings->lr > 0)) {
        return msdu__setting_fail(loader, "domain accumulated with weight_decay needs lr");
    }
    if (settings->nesterov && (!(settings->momentum > 0) || settings->dampening > 0)) {
        return msdu__setting_fail(loader, "nesterov needs momentum above 0 and dampening 0");
    }
    return MSDU_OK;
}

/* Rounds by the clock are parameter averaging, always late, and know no schedule but the clock. */
static msdu_status check_uneven(msdu__loader *loader)
{
    msdu__settings *s = loader->settings;
    bool is_parameter = s->domain == MSDU__DOMAIN_AUTO || s->domain == MSDU__DOMAIN_PARAMETER;
    bool is_late = s->overlap == MSDU__OVERLAP_AUTO || s->overlap == MSDU__OVERLAP_DELAYED;
    bool is_plain = s->correct[0] == '\0' || strcmp(s->correct, "delayed") == 0;
    bool is_policy = loader->given[MSDU__AT_INTERVAL] && strcmp(s->interval, "fixed") != 0;
    if (s->uneven != MSDU__UNEVEN_CLOCK) {
        return MSDU_OK;
    }
    if (!is_parameter) {
        return msdu__setting_fail(loader, "uneven clock averages parameters: domain must be auto "
                                          "or parameter");
    }
    if (!is_late) {
        return msdu__setting_fail(loader, "uneven clock: means are always late, overlap must be "
                                          "auto or delayed");
    }
    if (!is_plain) {
        return msdu__setting_fail(loader,
                                  "uneven clock: correct '%.60s' is not known to be right where "
                                  "ranks miss rounds; only delayed is, the default",
                                  s->correct);
    }
    if (is_policy) {
        return msdu__setting_fail(loader, "uneven clock: rounds come every clock_period, so "
                                          "interval must be fixed");
    }
    if (s->state == MSDU__STATE_RESET) {
        return msdu__setting_fail(loader, "uneven clock does not go with state reset");
    }
    s->domain = MSDU__DOMAIN_PARAMETER;
    (void)snprintf(s->interval, sizeof(s->interval), "fixed");
    return MSDU_OK;
}

static msdu_status check_tls(msdu__loader *loader)
{
    const msdu__settings *settings = loader->settings;
    int count = (settings->tls_key[0] != '\0') + (settings->tls_cert[0] != '\0') +
                (settings->tls_ca[0] != '\0');
    if (count != 0 && count != 3) {
        return msdu__setting_fail(loader, "tls_key, tls_cert and tls_ca go together: give all or "
                                          "none");
    }
    return MSDU_OK;
}

/* A default gives way to a value that was given; two values that were given must agree. */
static msdu_status check_sizes(msdu__loader *loader)
{
    msdu__settings *settings = loader->settings;
    if (settings->interval_steps > settings->interval_max) {
        const bool *given = loader->given;
        if (given[MSDU__AT_INTERVAL_MAX] && given[MSDU__AT_INTERVAL_STEPS]) {
            return msdu__setting_fail(loader, "interval_steps %lld is above interval_max %lld",
                                      (long long)settings->interval_steps,
                                      (long long)settings->interval_max);
        }
        if (given[MSDU__AT_INTERVAL_MAX]) {
            settings->interval_steps = settings->interval_max;
        } else {
            settings->interval_max = settings->interval_steps;
        }
    }
    if (settings->slice_bytes >= 0 && settings->fuse_bytes > settings->slice_bytes) {
        settings->fuse_bytes = settings->slice_bytes;
    }
    if (settings->wire_block % 16 != 0) {
        return msdu__setting_fail(loader, "wire_block %lld is not a multiple of 16",
                                  (long long)settings->wire_block);
    }
    return MSDU_OK;
}

static msdu_status check_correct(msdu__loader *loader)
{
    const msdu__settings *settings = loader->settings;
    msdu__chain chain;
    char why[200] = "";
    if (!msdu__chain_parse(settings->correct, may_be_late(settings), &chain, why, sizeof(why))) {
        return msdu__setting_fail(loader, "correct: '%.60s': %s", settings->correct, why);
    }
    return MSDU_OK;
}

msdu_status msdu__settings_check(msdu__loader *loader)
{
    static msdu_status (*const checks[])(msdu__loader * loader) = {
        check_uneven, check_domain, check_optimizer, check_tls, check_sizes, check_correct};
    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
        msdu_status status = checks[i](loader);
        if (status != MSDU_OK) {
            return status;
        }
    }
    return MSDU_OK;
}
