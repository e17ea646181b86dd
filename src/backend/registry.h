/* SPDX-License-Identifier: Apache-2.0 */
/* Backends by name: built in ("local", "host"), then a module file libmsdu_<name>.so. */
#ifndef MSDU_REGISTRY_H
#define MSDU_REGISTRY_H

#include "base/base.h"

extern const msdu_backend msdu__backend_local; /* local.c: ranks as threads of one process */
extern const msdu_backend msdu__backend_host;  /* host.c: processes that share memory */

/*
 * Find a backend by name, or by path if the name holds a slash. Modules are sought in
 * MSDU_MODULE_PATH (colon separated), beside libmsdu (or the executable), in its msdu/ folder, and
 * in the install folder; loaded once, never unloaded. Returns MSDU_OK, ERR_NOT_FOUND (text names
 * the places looked at), ERR_UNSUPPORTED (no or wrong symbol; the dynamic loader's own words are in
 * the text). Thread: any.
 */
msdu_status msdu__backend_find(const char *name, const msdu_backend **backend_out);

/*
 * Show every folder in which modules are sought, in this order; true from `look` ends it, and is
 * returned. Folders need not exist.
 */
typedef bool (*msdu__folder_fn)(void *user, const char *folder);
bool msdu__backend_folders(msdu__folder_fn look, void *user);

#endif
