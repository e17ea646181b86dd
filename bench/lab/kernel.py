# SPDX-License-Identifier: Apache-2.0
"""The calls of Linux that Python 3.9 does not bring: namespaces, mounts, death signal."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

# <linux/sched.h>, <linux/mount.h>, <linux/prctl.h>
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MS_REC = 0x4000
MS_PRIVATE = 1 << 18
PR_SET_PDEATHSIG = 1

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_libc = ctypes.CDLL(None, use_errno=True)


class Stopped(BaseException):
    """Raised wherever the program is when one of STOP_SIGNALS arrives."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def _checked(name: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Leave the namespaces named by CLONE_ flags for new ones; OSError, unshare(2)."""
    _checked("unshare", _libc.unshare(ctypes.c_int(flags)))


def enter_network(namespace: int) -> None:
    """Move this thread into the network namespace behind a descriptor; OSError, setns(2)."""
    _checked("setns", _libc.setns(ctypes.c_int(namespace), ctypes.c_int(CLONE_NEWNET)))


def mount(kind: str, target: str, flags: int = 0) -> None:
    """Mount a file system without a device, or change propagation; OSError, mount(2)."""
    words = (b"none", target.encode(), kind.encode() or None)
    _checked("mount", _libc.mount(*words, ctypes.c_ulong(flags), None))


def own_mounts() -> None:
    """Mounts of this process only, with a /sys that shows its own network namespace."""
    unshare(CLONE_NEWNS)
    mount("", "/", MS_REC | MS_PRIVATE)
    mount("sysfs", "/sys")


def own_host_name(name: str) -> None:
    """A host name that this process and its children have alone; OSError, sethostname(2)."""
    unshare(CLONE_NEWUTS)
    socket.sethostname(name)


def die_with_parent() -> None:
    """Have the kernel send SIGKILL when the parent ends, however it ends; prctl(2)."""
    _checked("prctl", _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))


_stopped_by: list[int] = []


def raise_if_stopped() -> None:
    """Raise Stopped if a signal came: what is raised within __del__ or a hook of fork() is lost."""
    if _stopped_by:
        raise Stopped(_stopped_by[0])


def raise_when_stopped() -> None:
    """From now on STOP_SIGNALS raise Stopped."""

    def handler(signum: int, frame: object) -> None:
        _stopped_by.append(signum)
        raise Stopped(signum)

    for number in STOP_SIGNALS:
        signal.signal(number, handler)


def exit_status(wait_status: int) -> int:
    """What a shell calls the status of a process: its own, or 128 + the signal."""
    code = os.waitstatus_to_exitcode(wait_status)
    return code if code >= 0 else 128 - code


def _inside(work: Callable[[], int], parent: int) -> int:
    die_with_parent()
    if select.select([parent], [], [], 0)[0]:  # end of file: the parent died before the line above
        return 128 + signal.SIGKILL
    os.setsid()  # a Ctrl-C reaches the parent only, which passes it on once
    raise_when_stopped()
    try:
        return work()
    except Stopped as stop:
        return 128 + stop.signum
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _leave_machine() -> None:
    """Enter a new network namespace; children will be in a new process namespace; OSError.

    Who is not root becomes root of a new user namespace, where the kernel lets users have one:
    allowed everything in there, and outside nothing but what he was allowed before.
    """
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        unshare(CLONE_NEWNET | CLONE_NEWPID)
        return
    unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWPID)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def run_isolated(work: Callable[[], int]) -> int:
    """Run work() as the first process of new network and process namespaces.

    Whatever work() started or made there is gone when this returns, or when this process is
    killed: the kernel kills what is left in a process namespace with its first process, and a
    network namespace with all its interfaces goes with the last process and descriptor. Nothing
    has a name outside. Returns the status of work(); OSError if namespaces are refused.
    """
    _leave_machine()
    alive, keep = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(keep)
            status = _inside(work, alive)
        except BaseException:  # noqa: BLE001 - the child must not return into the caller
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)
    os.close(alive)
    for number in STOP_SIGNALS:
        signal.signal(number, lambda signum, frame: os.kill(child, signum))
    return exit_status(os.waitpid(child, 0)[1])
