/* SPDX-License-Identifier: Apache-2.0 */
/* Where this process stands in its job. */
#ifndef MSDU_ATTACH_PLACE_H
#define MSDU_ATTACH_PLACE_H

/* Its rank, as its launcher says; -1: it does not. */
int msdu__attach_place(void);

/* The variable by which `msdu run` tells who was started: its own process, which the trainer
 * becomes; as a negative number where it becomes a launcher, whose children are the ranks. */
#define MSDU__RUN_VARIABLE "_MSDU_RUN"

#endif
