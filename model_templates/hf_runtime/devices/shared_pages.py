"""Lets copies of one model on a CPU share the memory of their weights.

Each copy lays its weights out by itself, in memory of its own, and all come to the same bytes. The
first puts whole pages of them in a file of shared memory; the others, which find it, compare and
map it in the place of their own. A page that one of them writes to is its own again. A file that no
process holds is removed by the next that looks; `hf-triton serve` removes all at its end.
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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .. import log
from ..errors import reason
from ..heartbeat import VARIABLE

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

_kept: list[tuple[Any, int, int]] = []  # a weak reference to what holds memory, its first page, end
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
    _share_all(Path(f"{prefix.removesuffix('beat_')}weights_"))


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
        while end - start > num_bytes:
            size = _allocated(start, end)
            if size > num_bytes:
                _note(owner, start + 1, start + size)
            start += size or mmap.PAGESIZE


def _allocated(start: int, end: int) -> int:
    """The bytes of the piece of glibc's malloc, which nobody but its owner writes to, that begins
    with a page: by the size and the flag before it (malloc.c, IS_MMAPPED), as it is or after an
    aligned start. 0 where none does.
    """
    for skipped in (0, _ALIGNMENT - 16):
        word = ctypes.c_size_t.from_address(start + skipped + 8).value
        size = (word & ~7) + skipped
        if word & 7 == _IS_MMAPPED and size % mmap.PAGESIZE == 0 and size <= end - start:
            return size
    return 0


def _note(owner: Any, start: int, end: int) -> None:
    start, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if end - start >= _LEAST_BYTES:
        _kept.append((weakref.ref(owner), start, end))


def _private_memory() -> list[tuple[int, int]]:
    """Anonymous memory of this process, from where to where."""
    found = []
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        place, rights, *_, last = line.split()
        if rights == "rw-p" and last == "0":  # no file, and no name
            start, end = place.split("-")
            found.append((int(start, 16), int(end, 16)))
    return found


def _note_living_weights() -> None:
    """Where their numbers lie now: those of a parameter may have been replaced since."""
    memory = _private_memory()
    for reference in _weights:
        weight = reference()
        if weight is not None and type(weight.data).__name__ == "Tensor":
            start = weight.data_ptr()
            end = start + weight.nbytes
            if any(first <= start and end <= last for first, last in memory):
                _note(weight, start, end)
    _weights.clear()


def _share_all(prefix: Path) -> None:
    num_bytes = 0
    _note_living_weights()
    try:
        for owner, start, end in _kept:
            if owner() is not None:
                num_bytes += _share(prefix, start, end)
    except OSError as error:
        log.warn(f"copies of a model don't share all weights: {reason(error)}")
    _kept.clear()
    with suppress(OSError), _alone(prefix):
        _remove_unused(prefix)
    log.info(f"{num_bytes / 2**20:.0f} MiB of weights are shared with the model's other copies")


def _share(prefix: Path, start: int, end: int) -> int:
    """Maps a file in the place of memory that holds the same -> bytes shared. Raises OSError."""
    size = end - start
    own = (ctypes.c_char * size).from_address(start)
    pages = memoryview(own).cast("B")
    digest = hashlib.sha256(str(size).encode())
    for offset in range(0, size, _SAMPLED * mmap.PAGESIZE):
        digest.update(pages[offset : offset + mmap.PAGESIZE])
    path = Path(f"{prefix}{digest.hexdigest()[:32]}")
    file = _opened(path)
    if file is None:
        with _alone(prefix):
            file = _opened(path)  # which another has written meanwhile
            file = _written(path, pages) if file is None else file
    there = _mapped(0, size, file, 0)
    is_same = (
        _libc.memcmp(ctypes.c_void_p(there), ctypes.c_void_p(start), ctypes.c_size_t(size)) == 0
    )
    _libc.munmap(ctypes.c_void_p(there), ctypes.c_size_t(size))
    if is_same:
        _mapped(start, size, file, _MAP_FIXED)
    os.close(file)  # what is mapped keeps its lock
    return size if is_same else 0


def _mapped(start: int, size: int, file: int, flags: int) -> int:
    rights = mmap.PROT_READ | mmap.PROT_WRITE
    place = _libc.mmap(start, size, rights, mmap.MAP_PRIVATE | flags, file, 0)
    if place in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "pages can't be mapped")
    return int(place)


def _opened(path: Path) -> int | None:
    """A file that another copy has written, locked against its removal."""
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if os.fstat(file).st_nlink:
                return file
        os.close(file)
    return None


def _written(path: Path, pages: memoryview) -> int:
    """A new file, whole once others see it, for the one that holds _alone's lock."""
    _check_room(path.parent, len(pages))
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    file = os.open(temporary, flags, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_SH)
        written = 0
        while written < len(pages):
            written += os.write(file, pages[written:])
        temporary.rename(path)
        return file
    except BaseException:
        os.close(file)
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def _alone(prefix: Path) -> Iterator[None]:
    """No other copy writes or removes files meanwhile: several that write the same would take its
    memory several times.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(f"{prefix}lock", flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


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


def _remove_unused(prefix: Path) -> None:
    for path in prefix.parent.glob(f"{prefix.name}*"):
        with suppress(OSError):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(file)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_int64),
]
