"""Lets copies of one model on a CPU share the memory of their weights.

Each copy lays its weights out by itself, in memory of its own, and all come to the same bytes. The
first puts whole pages of them in a file of shared memory; the others, which find it, compare and
map it in the place of their own. A page that one of them writes to is its own again. `hf-triton
serve` removes a file that no process holds any more.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import log
from ..errors import reason
from ..heartbeat import VARIABLE
from .weight_files import alone, prefix_of

_LEAST_BYTES = 2**18  # what is smaller is not worth a file
_LEAST_FREE = 2**28  # of the folder, through which Triton passes tensors; half of a smaller one
# man 3 mallopt: from so many bytes on, each piece of memory is mapped by itself, so that it lies
# alike in the pages of all copies. glibc's own limit grows up to 32 MiB as a process runs, and
# twice as much of freed memory is kept.
_MMAP_THRESHOLD, _LARGEST_THRESHOLD = -3, 2**25
_TRIM_THRESHOLD = -1
_SAMPLED = 64  # one page of so many names a file; all are compared
_IS_MMAPPED = 2
_ALIGNMENT = 64  # of torch's and FBGEMM's memory
_MAP_FIXED = 0x10  # of Linux, on all processors

# A weak reference to what holds memory, and where memory lies that was new when it was made.
_noted: list[tuple[Any, int, int]] = []
_weights: list[Any] = []  # weak references to parameters
_is_on = False


@contextmanager
def sharing(num_copies: int) -> Iterator[None]:
    """What is noted while the block runs is shared at its end, where a server's model has several
    copies.
    """
    global _is_on
    prefix = os.environ.get(VARIABLE)
    if num_copies < 2 or not prefix or not hasattr(_libc, "mallopt"):
        yield
        return
    _is_on = True
    _libc.mallopt(_MMAP_THRESHOLD, _LEAST_BYTES)
    try:
        yield
    finally:
        _is_on = False
        _libc.mallopt(_MMAP_THRESHOLD, _LARGEST_THRESHOLD)
        _libc.mallopt(_TRIM_THRESHOLD, 2 * _LARGEST_THRESHOLD)
    _share_all(prefix_of(prefix))


def note_weights(model: Any) -> None:
    """The parameters of a torch module that live until the end, where they are not mapped from a
    file.
    """
    if _is_on:
        _weights.extend(weakref.ref(weight) for weight in model.parameters())


def noting(owner: Any, num_bytes: int, make: Callable[[], object]) -> None:
    """Calls ``make``; what it allocates for weights of at least ``num_bytes`` is noted to live as
    long as ``owner``.
    """
    before = _private_memory() if _is_on else []
    make()
    for start, end in _private_memory() if _is_on else ():
        for other_start, other_end in before:
            if other_start <= start < other_end:
                start = other_end
            elif start < other_start < end:
                end = other_start
        if end - start > num_bytes:
            _noted.append((weakref.ref(owner), start, end))


def _pieces(start: int, end: int) -> Iterator[tuple[int, int]]:
    """The pieces of memory there that malloc has mapped by themselves, so that nobody but their
    owner writes to their pages. Each begins with a page; glibc writes its size and a flag
    (malloc.c, IS_MMAPPED) just before what it gives out, which torch aligns.
    """
    while start < end:
        step = mmap.PAGESIZE
        for skipped in (0, _ALIGNMENT - 16):
            word = ctypes.c_size_t.from_address(start + skipped + 8).value
            size = (word & ~7) + skipped
            if word & 7 == _IS_MMAPPED and size % mmap.PAGESIZE == 0 and 0 < size <= end - start:
                yield start + 1, start + size
                step = size
                break
        start += step


def _private_memory() -> list[tuple[int, int]]:
    """Anonymous memory of this process, from where to where."""
    found = []
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        place, rights, *_, last = line.split()
        if rights == "rw-p" and last == "0":  # no file, and no name
            start, end = place.split("-")
            found.append((int(start, 16), int(end, 16)))
    return found


def _living() -> Iterator[tuple[int, int]]:
    """Where weights lie now, from where to where. What was noted may have been freed since, and a
    parameter may have been given other memory.
    """
    memory = _private_memory()
    for owner, start, end in _noted:
        for first, last in memory if owner() is not None else ():
            yield from _pieces(max(start, first), min(end, last))
    for reference in _weights:
        weight = reference()
        if weight is not None and type(weight.data).__name__ == "Tensor":
            start = weight.data_ptr()
            end = start + weight.nbytes
            if any(first <= start and end <= last for first, last in memory):
                yield start, end


def _share_all(prefix: Path) -> None:
    num_bytes, failures = 0, []
    for start, end in _living():
        try:
            num_bytes += _share(prefix, start, end)
        except OSError as error:
            failures.append(reason(error))
    if failures:
        log.warn(f"copies of a model don't share all weights: {failures[0]}")
    _noted.clear()
    _weights.clear()
    log.info(f"{num_bytes / 2**20:.0f} MiB of weights are shared with the model's other copies")


def _share(prefix: Path, start: int, end: int) -> int:
    """Maps a file in the place of pages that hold the same -> bytes shared. Raises OSError."""
    start = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (end - start) // mmap.PAGESIZE * mmap.PAGESIZE
    if size < _LEAST_BYTES:
        return 0
    own = (ctypes.c_char * size).from_address(start)
    file = _opened(prefix, memoryview(own).cast("B"))
    try:  # what is mapped keeps the file's lock
        there = _mapped(0, size, file, 0)
        is_same = (
            _libc.memcmp(ctypes.c_void_p(there), ctypes.c_void_p(start), ctypes.c_size_t(size)) == 0
        )
        _libc.munmap(ctypes.c_void_p(there), ctypes.c_size_t(size))
        if is_same:
            _mapped(start, size, file, _MAP_FIXED)
    finally:
        os.close(file)
    return size if is_same else 0


def _mapped(start: int, size: int, file: int, flags: int) -> int:
    rights = mmap.PROT_READ | mmap.PROT_WRITE
    place = _libc.mmap(start, size, rights, mmap.MAP_PRIVATE | flags, file, 0)
    if place in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "pages can't be mapped")
    return int(place)


def _opened(prefix: Path, pages: memoryview) -> int:
    """The file of such pages, which a copy has written, locked against its removal. Raises OSError
    where it can't be written, or is another user's, who could change it.
    """
    digest = hashlib.sha256(str(len(pages)).encode())
    for offset in range(0, len(pages), _SAMPLED * mmap.PAGESIZE):
        digest.update(pages[offset : offset + mmap.PAGESIZE])
    path = Path(f"{prefix}{digest.hexdigest()[:32]}")
    with alone(prefix):
        if not path.exists():
            _write(path, pages)
        if path.lstat().st_uid != os.getuid():
            raise PermissionError(errno.EPERM, f"{path} is another user's")
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        fcntl.flock(file, fcntl.LOCK_SH)
    return file


def _write(path: Path, pages: memoryview) -> None:
    """Makes a file, whole once it has its name."""
    _check_room(path.parent, len(pages))
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        written = 0
        while written < len(pages):
            written += os.write(file, pages[written:])
        temporary.rename(path)
    finally:
        os.close(file)
        temporary.unlink(missing_ok=True)


def _check_room(folder: Path, num_bytes: int) -> None:
    """Raises OSError where files of this size would leave too little to Triton."""
    there = os.statvfs(folder)
    most = there.f_bavail * there.f_frsize - min(_LEAST_FREE, there.f_blocks * there.f_frsize // 2)
    if num_bytes > most:
        raise OSError(
            errno.ENOSPC,
            f"{num_bytes / 2**20:.1f} MiB more leave too little of {folder} to Triton; give it "
            "room for the weights beside (a container: --shm-size)",
        )


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_int64),
]
