"""Landlock by ctypes: after `restrict`, this thread and every thread it starts see only the paths that were named.

The kernel's interface is three system calls and two small structs (linux/landlock.h); rights that an older kernel
doesn't know are left out of the rule set, as its documentation prescribes.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same number on every architecture
_QUERY_VERSION = 1
_RULE_PATH_BENEATH = 1

WRITE_FILE, READ_FILE, READ_DIR, REMOVE_FILE, MAKE_REG = 1 << 1, 1 << 2, 1 << 3, 1 << 5, 1 << 8
TRUNCATE = 1 << 14
READ_TREE = READ_FILE | READ_DIR
WRITE_TREE = READ_TREE | WRITE_FILE | REMOVE_FILE | MAKE_REG | TRUNCATE

# Highest file-system right known to each ABI, as the number of low bits that may be handled.
_FS_BITS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_NET_ALL = 0b11  # bind and connect over TCP, since ABI 4
_SCOPE_ALL = 0b11  # abstract unix sockets and signals to processes outside, since ABI 6

_libc = ctypes.CDLL(None, use_errno=True)


class _RulesetAttr(ctypes.Structure):
    _fields_ = [("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def _syscall(number: int, *arguments: object) -> int:
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock system call {number}: {os.strerror(code)}")
    return result


def abi() -> int:
    """The kernel's Landlock ABI, 0 where it has none or it is switched off."""
    try:
        return _syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_QUERY_VERSION))
    except OSError:
        return 0


def restrict(rules: Mapping[Path, int], *, abi_version: int) -> None:
    """Deny every path but those beneath `rules`' keys, with the rights of their values; deny TCP where the ABI can.

    Needs no_new_privs. Call it before any thread is started: it binds the calling thread and its future children only.
    Raises OSError; a path that doesn't exist is an error too (its rule would silently be missing).
    """
    handled = (1 << _FS_BITS.get(abi_version, 16)) - 1
    attr = _RulesetAttr(handled, _NET_ALL if abi_version >= 4 else 0, _SCOPE_ALL if abi_version >= 6 else 0)
    size = 8 if abi_version < 4 else 16 if abi_version < 6 else 24
    ruleset = _syscall(_CREATE_RULESET, ctypes.byref(attr), ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for path, rights in rules.items():
            _allow(ruleset, path, rights & handled)
        _syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _PathBeneath(rights, fd)
        _syscall(
            _ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_RULE_PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0)
        )
    finally:
        os.close(fd)


def trees(paths: Iterable[Path], rights: int) -> dict[Path, int]:
    """Rules that give `rights` beneath each existing directory of `paths`."""
    return {path: rights for path in paths if path.is_dir()}
