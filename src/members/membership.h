/* SPDX-License-Identifier: Apache-2.0 */
/* Epochs of membership as a backend offers them (msdu/backend.h). */
#ifndef MSDU_MEMBERS_MEMBERSHIP_H
#define MSDU_MEMBERS_MEMBERSHIP_H

#include <msdu/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

extern const msdu_membership msdu__membership;

#ifdef __cplusplus
}
#endif

#endif
