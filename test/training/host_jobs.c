/* SPDX-License-Identifier: Apache-2.0 */
/* Trainings on hosts given by hand. */
#include "host_jobs.h"

#include <check.h>
#include <string.h>

#include "state_kit.h"

const char *const host_layouts[HOST_LAYOUTS] = {"aabb", "ababa", "aab", "aabbcc", "aaaabb", "abcb"};

static void name_host(const ranks_self *self, msdu_config *config)
{
    static const char *const names[] = {"a", "b", "c"};
    config->hosts = names[self->job->hosts[self->rank] - 'a'];
}

ranks_job host_job(const char *hosts, int interval, const char *overlap)
{
    ranks_job job = kit_job("auto", overlap);
    job.configured = name_host;
    job.hosts = hosts;
    job.ranks = (int)strlen(hosts);
    job.steps = 25;
    job.config.interval_steps = interval;
    job.config.delay_steps = 1;
    job.config.warmup_steps = 1;
    job.config.target_overhead = 1;
    return job;
}

static const ranks_tensor model[] = {
    {.count = 7},
    {.count = 1500},
    {.count = 90, .dtype = MSDU_FLOAT64},
    {.count = 33, .role = MSDU_ROLE_BUFFER},
};

ranks_job host_job_wide(const char *hosts, const char *overlap)
{
    ranks_job job = host_job(hosts, 4, overlap);
    job.tensors = model;
    job.tensor_count = 4;
    job.steps = 40;
    job.config.slice_bytes = 4096;
    job.config.fuse_bytes = 1024;
    job.config.lr = 0.01;
    return job;
}

void host_check_alike(const ranks_run *run, int last)
{
    const ranks_job *job = run->selves[0].job;
    for (int rank = 0; rank < job->ranks; rank++) {
        int mate = (int)(strchr(job->hosts, job->hosts[rank]) - job->hosts);
        ck_assert_msg(memcmp(run->selves[rank].history, run->selves[mate].history,
                             (size_t)(last + 1) * ranks_elements(job) * sizeof(double)) == 0,
                      "ranks %d and %d of a host differ", mate, rank);
    }
}
