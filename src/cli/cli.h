/* SPDX-License-Identifier: Apache-2.0 */
/* Commands of `msdu`: each is a function like main(); argv[0] is "msdu NAME". One file each. */
#ifndef MSDU_CLI_H
#define MSDU_CLI_H

/* Exit status for a wrong option or argument, as shells use it. */
#define MSDU__EXIT_USAGE 2

int msdu__cmd_info(int argc, char **argv);  /* src/cli/info.c */
int msdu__cmd_bench(int argc, char **argv); /* bench/harness/bench.c */
int msdu__cmd_run(int argc, char **argv);   /* src/cli/run_cmd.c */
int msdu__cmd_plan(int argc, char **argv);  /* src/cli/plan_cmd.c */

#endif
