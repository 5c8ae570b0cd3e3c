"""Starts the processes in which grammars are made and followed, and talks with them.

The first is a program of its own (grammar_process.py), which starts with the first constraint and
makes llguidance's form of the tokenizer; it forks one for each constraint. Knows no grammar
library.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import socket
import subprocess
import threading
import weakref
from collections.abc import Iterable
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import hf_runtime
from hf_runtime import log
from hf_runtime.errors import OverloadedError, RequestError, reason
from hf_runtime.python_program import python_program

from . import grammar_process
from .constraint import Constraint
from .following import Following, Limits

MAX_PROCESSES = 256  # each has 5 MiB from the beginning
MAX_BYTES = 2**30  # beyond that, of all of them
_START_S = 60.0
_DIED = "the process that makes grammars has ended: try again later"
# The package by its folder's name: what the engine's process calls it can depend on Triton.
_FOLDER = Path(__file__).parent
_PROGRAM = (
    "import sys; sys.path[:0] = sys.argv[3:]; "
    f"from {_FOLDER.name}.{grammar_process.__name__.rpartition('.')[2]} import main; main()"
)


class GrammarProcesses:
    """The processes of one model. ``vocab_size`` is how many logits it has, ``eos_token_ids`` are
    those that end a text; without ``masks`` outputs are only followed.
    """

    def __init__(
        self, tokenizer: Any, vocab_size: int, eos_token_ids: Iterable[int], *, masks: bool = True
    ) -> None:
        self._tokenizer, self._vocab_size, self._masks = tokenizer, vocab_size, masks
        self._eos_token_ids = sorted(eos_token_ids)
        self.limits = Limits()
        self._lock = threading.Lock()  # guards what follows
        self._program: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._problem, self._closed = "", False
        self._numbers = itertools.count(1)
        self._open: weakref.WeakValueDictionary[int, Following] = weakref.WeakValueDictionary()

    @property
    def num_bytes(self) -> int:
        """What all processes have told of their memory."""
        return sum(one.num_bytes for one in list(self._open.values()))

    def prepare(self) -> None:
        """Starts the program where it does not run: a tenth of a second, with a large tokenizer
        about a second. Where it can't be, each request is told why.
        """
        with self._lock:
            if self._problem or self._closed or self._runs:
                return
            self._end_program()
            try:
                described = self._described()
            except BaseException as error:  # a tokenizer's panic is not an Exception
                self._problem = _unknown_tokenizer(error)
                return
            if importlib.util.find_spec("llguidance") is None:
                self._problem = (
                    "this server's Python lacks the package llguidance, which it needs; whoever "
                    "runs the server can add it: pip install 'llguidance>=1.7,<2'"
                )
                return
            self._start_program(described)

    def begin(self, constraint: Constraint, time_limit_s: float) -> Following:
        """Begins with a grammar; ``Following.wait`` says when it is made.

        Raises:
            RequestError: this model can have none; names the option.
            OverloadedError: too many are in use.
        """
        self.prepare()
        special_tokens = self._special_tokens(constraint)
        with self._lock:
            if self._problem:
                raise RequestError(f"{constraint.kind}: {self._problem}")
            if self._control is None:
                raise OverloadedError(_DIED)
            if len(self._open) >= MAX_PROCESSES:
                raise OverloadedError(
                    f"{len(self._open)} different constraints are in use, allowed: at most "
                    f"{MAX_PROCESSES} at once: try again later"
                )
            number = next(self._numbers)
            here, there = socket.socketpair()
            with there:
                fork = grammar_process.CONTROL.pack(grammar_process.FORK, number)
                try:
                    socket.send_fds(self._control, [fork], [there.fileno()], socket.MSG_NOSIGNAL)
                except OSError:
                    here.close()
                    raise OverloadedError(_DIED) from None
            kill = partial(self._kill, number)
            following = Following(
                here, constraint, special_tokens, self.limits, self._limit_memory, kill
            )
            self._open[number] = following
        following.ask(time_limit_s, masks=self._masks)
        return following

    def close(self) -> None:
        """Ends them all."""
        with self._lock:
            self._closed = True
            self._end_program()

    @property
    def _runs(self) -> bool:
        return self._program is not None and self._program.poll() is None

    def _limit_memory(self) -> None:
        """Ends the process with the most memory where all together have too much."""
        while self.num_bytes > MAX_BYTES:
            max(list(self._open.values()), key=lambda one: one.num_bytes).end()

    def _kill(self, number: int) -> None:
        """Without a lock: it may be called by a collection, within anything."""
        control = self._control
        if control is not None:
            with contextlib.suppress(OSError):
                kill = grammar_process.CONTROL.pack(grammar_process.KILL, number)
                control.send(kill, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def _start_program(self, described: bytes) -> None:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there, _memory_file(described) as file:
            descriptors = (there.fileno(), file.fileno())
            arguments = map(str, (*descriptors, *_import_folders()))
            try:
                self._program = subprocess.Popen(
                    [python_program(), "-IS", "-c", _PROGRAM, *arguments],
                    pass_fds=descriptors,
                    env=_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # a panic would print the caller's text there
                )
            except OSError as error:
                here.close()
                self._problem = f"its process does not start ({reason(error)})"
                return
        self._control = here
        here.settimeout(_START_S)
        try:
            answer = here.recv(4096)
        except OSError:
            answer = b""
        here.settimeout(None)
        if problem := answer.decode().strip():
            self._problem = _unknown_tokenizer(Exception(problem))
        if problem or not answer:
            self._end_program()
        if not answer:
            log.error("the process that makes grammars does not start")

    def _end_program(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._program is not None:
            self._program.kill()
            self._program.wait()
        self._control = self._program = None

    def _described(self) -> bytes:
        """The tokenizer as llguidance takes it (llguidance.hf.from_tokenizer)."""
        backend = copy(self._tokenizer.backend_tokenizer)
        backend.no_padding()
        backend.no_truncation()
        described = {
            "tokenizer": backend.to_str(),
            "num_tokens": max(self._vocab_size, len(self._tokenizer)),
            "eos_token_ids": self._eos_token_ids or [self._tokenizer.eos_token_id],
        }
        return json.dumps(described).encode()

    def _special_tokens(self, constraint: Constraint) -> dict[int, str]:
        added = self._tokenizer.added_tokens_decoder.items()
        special = {token_id: token.content for token_id, token in added if token.special}
        return {i: t for i, t in special.items() if any(t in one for one in constraint.texts)}


def _import_folders() -> list[str]:
    """Where the program finds its modules: this package, the runtime, llguidance."""
    folders = [_FOLDER.parent, Path(hf_runtime.__file__).parents[1]]
    spec = importlib.util.find_spec("llguidance")
    if spec is not None and spec.origin is not None:
        folders.append(Path(spec.origin).parents[1])
    return list(dict.fromkeys(map(str, folders)))


def _environment() -> dict[str, str]:
    """No secret, and no allocator per thread: its address space would count as memory."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return {**kept, "MALLOC_ARENA_MAX": "1", "PYTHONUTF8": "1", "RAYON_NUM_THREADS": "1"}


def _memory_file(content: bytes) -> Any:
    file = os.fdopen(os.memfd_create("tokenizer"), "w+b")
    file.write(content)
    file.flush()
    return file


def _unknown_tokenizer(error: BaseException) -> str:
    why = reason(Exception(str(error) or type(error).__name__), 120)
    return (
        "can't be used with this model, whose tokenizer is of a kind that llguidance does not know "
        f"({why})"
    )
