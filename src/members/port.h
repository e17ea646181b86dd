/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors that a forked child must not keep. As long as one holds a dead member's port, that
 * member looks silent, and silence takes a majority; trainers fork data loaders.
 */
#ifndef MSDU_MEMBERS_PORT_H
#define MSDU_MEMBERS_PORT_H

/* From now on every forked child closes what is noted. */
void msdu__port_watch_forks(void);
/* Note a descriptor; returns it. Below 0: nothing. */
int msdu__port_note(int fd);
/* Close a descriptor and forget it. Below 0: nothing. */
void msdu__port_close(int fd);

#endif
