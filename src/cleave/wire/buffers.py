"""What bulk traffic needs of the allocator, on both sides; does nothing where it is not glibc's."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3


def keep_large_buffers() -> None:
    """Tell glibc not to give large buffers back at once: bulk traffic is 2 to 4 times faster.

    Mapping and faulting fresh pages for every message costs more than moving its bytes.
    """
    library = _glibc()
    if library is not None:
        library.mallopt(_MMAP_THRESHOLD, 1 << 30)
        library.mallopt(_TRIM_THRESHOLD, 1 << 30)
        library.mallopt(_TOP_PAD, 64 << 20)


def return_free_memory() -> None:
    """Give memory that is free in this process back to the machine."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        library = ctypes.CDLL(None)
        has_both = hasattr(library, "mallopt") and hasattr(library, "malloc_trim")
    except OSError:
        return None
    return library if has_both else None
