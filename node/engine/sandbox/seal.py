"""Weights that can't be patched any more: read-only pages, sealed where the kernel can (mseal, Linux 6.10)."""

from __future__ import annotations

import ctypes
import mmap
import os

_MSEAL = 462  # the same number on every architecture
_PROT_READ = 1

_libc = ctypes.CDLL(None, use_errno=True)


def protect(address: int, length: int) -> bool:
    """Make whole pages read-only for good; True if the kernel sealed them, False if they are only read-only.

    `address` must be the start of a page. A later mprotect or munmap of sealed pages is refused with EPERM, whoever
    calls it in this process. Raises OSError where even read-only is refused.
    """
    whole = -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
    start, size = ctypes.c_void_p(address), ctypes.c_size_t(whole)
    if _libc.mprotect(start, size, _PROT_READ) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"weights could not be made read-only: {os.strerror(code)}")
    sealed: int = _libc.syscall(ctypes.c_long(_MSEAL), start, size, ctypes.c_ulong(0))
    return sealed == 0
