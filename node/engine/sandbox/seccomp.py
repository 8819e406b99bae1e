"""The system-call filter: no new program, process, connection or socket, no look into other processes.

It names what is refused rather than what is allowed: torch, oneDNN and the C library change their calls from release to
release. Threads stay possible. `mprotect` and PROT_EXEC stay allowed, because thread stacks and oneDNN's generated
kernels need them; paths are Landlock's part, since a filter can't look behind a pointer.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

try:
    import pyseccomp
except (ImportError, OSError, RuntimeError):
    # the wheel is there, but the system's libseccomp.so.2 isn't
    pyseccomp = None

_CLONE_THREAD = 0x00010000

# userfaultfd, bpf and perf are favourite steps of kernel exploits.
REFUSED = (
    "execve", "execveat", "fork", "vfork", "socket", "connect", "bind", "ptrace", "process_vm_readv",
    "process_vm_writev", "process_madvise", "pidfd_open", "pidfd_getfd", "pidfd_send_signal", "kcmp", "tkill",
    "rt_sigqueueinfo", "rt_tgsigqueueinfo", "setns", "unshare", "mount", "umount2", "pivot_root", "chroot",
    "move_mount", "open_tree", "fsopen", "fsmount", "fsconfig", "fspick", "mount_setattr", "bpf", "perf_event_open",
    "userfaultfd", "keyctl", "add_key", "request_key", "kexec_load", "kexec_file_load", "init_module",
    "finit_module", "delete_module", "open_by_handle_at", "name_to_handle_at", "personality", "reboot", "swapon",
    "swapoff", "acct", "quotactl", "settimeofday", "clock_settime", "setuid", "setgid", "setresuid", "setresgid",
    "setgroups", "capset", "iopl", "ioperm", "mknod", "mknodat", "syslog",
)  # fmt: skip
# Answered as if the kernel lacked them: the C library then takes its older path, which the filter can judge, and
# nobody connects or opens through an io_uring, past this filter.
ABSENT = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register")


def is_available() -> bool:
    """Whether this system has libseccomp (Debian and Fedora always do; minimal images may not)."""
    return pyseccomp is not None


def restrict() -> None:
    """Load the filter for this thread and all its future threads. Needs no_new_privs; raises OSError."""
    refuse, absent = pyseccomp.ERRNO(errno.EPERM), pyseccomp.ERRNO(errno.ENOSYS)
    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    for name in REFUSED:
        _add(rules, refuse, name)
    for name in ABSENT:
        _add(rules, absent, name)
    # clone only makes threads, socketpair only local pairs, signals go only to ourselves
    rules.add_rule(refuse, "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, _CLONE_THREAD, 0))
    rules.add_rule(refuse, "socketpair", pyseccomp.Arg(0, pyseccomp.NE, socket.AF_UNIX))
    rules.add_rule(refuse, "kill", pyseccomp.Arg(0, pyseccomp.NE, os.getpid()))
    rules.add_rule(refuse, "tgkill", pyseccomp.Arg(0, pyseccomp.NE, os.getpid()))
    rules.load()


def _add(rules: Any, action: int, name: str) -> None:
    # fork, vfork, iopl … don't exist on every architecture: there is nothing to refuse then
    if pyseccomp.resolve_syscall(pyseccomp.system_arch(), name) >= 0:
        rules.add_rule(action, name)
