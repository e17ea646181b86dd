/* SPDX-License-Identifier: Apache-2.0 */
/* Hosts with different numbers of devices: tensors of a device are exchanged as one group of ranks.
 */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "ranks.h"
#include "reference.h"
#include "state_kit.h"
#include "suite.h"

static const char *const letters[] = {"aab", "abbb", "abc"};

static void name_host(const ranks_self *self, msdu_config *config)
{
    static const char *const names[] = {"a", "b", "c"};
    const char *hosts = self->job->user;
    config->hosts = names[hosts[self->rank] - 'a'];
}

static void check_flat(ranks_self *self)
{
    msdu_summary summary = MSDU_SUMMARY_INIT;
    bool is_flat = msdu_summary_get(self->ctx, &summary) == MSDU_OK && summary.hosts > 1 &&
                   summary.carriers == 0 && summary.gradient_ranks == 1;
    self->status = is_flat ? self->status : MSDU_ERR_INVALID;
}

START_TEST(uneven_hosts_are_one_group_of_ranks)
{
    char hosts[8];
    ranks_job job = kit_job("auto", ranks_overlaps[_i]);
    for (size_t k = 0; k < sizeof(letters) / sizeof(letters[0]); k++) {
        (void)snprintf(hosts, sizeof(hosts), "%s", letters[k]);
        job.ranks = (int)strlen(hosts);
        job.user = hosts;
        job.configured = name_host;
        job.ended = check_flat;
        reference_check(&job, 1e-6);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_hosts");
    TCase *tcase = suite_case(suite, "hosts", 120, NULL, NULL);
    tcase_add_loop_test(tcase, uneven_hosts_are_one_group_of_ranks, 0, RANKS_OVERLAPS);
    return suite_run(suite);
}
