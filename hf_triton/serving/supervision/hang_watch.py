"""Ends what hangs: tritonserver, its models' processes, and those beside it. They are then started
again like those that died.

One rule: what has work and is silent for so many seconds, or was stopped, hangs. A process beats or
answers (hang_detection/processes.py). A model says that it is ready. A load has a process: Triton
24.10 waits for ever for one that dies in its first moments, and loads nothing more by that name. It
also waits for ever for the end of one that got no processor for a second and then loaded.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from generator.render import model_config
from generator.render.manifest import CONFIG_FILE
from hf_triton.serving.supervision.children import Children
from hf_triton.serving.supervision.hang_detection.dead_process_memory import Leftovers, left_behind
from hf_triton.serving.supervision.hang_detection.processes import (
    SILENT_THOUGH_BUSY_S,
    HangingProcesses,
)
from hf_triton.serving.supervision.hang_detection.server_answers import ServerAnswers
from hf_triton.serving.supervision.health import Health
from hf_triton.serving.supervision.model_loader import ModelLoader
from hf_triton.tritonserver.http_api import NUM_LOADERS
from hf_triton.tritonserver.model_state import Cause
from hf_triton.tritonserver.process import TritonServer
from hf_triton.tritonserver.stubs import server_process, started_s, starts_another

# Before this, the engine's own watchdog has waited (watchdog_s). What it waits for may still end: a
# step on a GPU leaves the processor idle, so nobody can tell it from one that never does.
_NOT_READY_S = 60.0
_NO_PROCESS_S = 15.0  # a load's process is there within one, where there are cores
_LOADED_S = 15.0  # Triton takes what has loaded at once
_READ_LATE_S = 2.0  # the log's line may be read so long after it was written

Key = TypeVar("Key", bound=Hashable)


class Silence(Generic[Key]):
    """For how long some things have been silent without a break."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since_s: dict[Key, float] = {}

    def longer_than(self, seconds: float, silent: Iterable[Key]) -> list[Key]:
        """Those that have been for so long, of all that are ``silent`` now."""
        now = self._clock()
        self._since_s = {key: self._since_s.get(key, now) for key in silent}
        return [key for key, since_s in self._since_s.items() if now - since_s >= seconds]

    def begin_anew(self, keys: Collection[Key]) -> None:
        """Something was done about these."""
        for key in keys:
            self._since_s.pop(key, None)


@dataclass(frozen=True)
class _Beat:
    written_ns: int
    seen_at_s: float
    is_ready: bool


class Heartbeats:
    """The last beats of models' processes: each writes a file once a second, and in it whether its
    model is ready. A process of a model that is not ours has none. ``prefix`` is what the paths of
    the files begin with.
    """

    def __init__(self, prefix: str, clock: Callable[[], float]) -> None:
        self._prefix, self._clock = prefix, clock
        self._last: dict[int, _Beat] = {}

    def look(self, pids: Iterable[int]) -> None:
        """Reads the beats of these processes; those of others are forgotten."""
        pids = set(pids)
        for ended in self._last.keys() - pids:
            with contextlib.suppress(OSError):
                self._path(ended).unlink(missing_ok=True)
        beats = {pid: self._beat(pid) for pid in pids}
        self._last = {pid: beat for pid, beat in beats.items() if beat}

    def silent_s(self, pid: int) -> float:
        """Seconds since it last beat; 0 of one that has not begun to, or has ended."""
        beat = self._last.get(pid)
        return self._clock() - beat.seen_at_s if beat else 0.0

    def has_begun(self, pid: int) -> bool:
        """Whether it beats, as it does once its model has loaded."""
        return pid in self._last

    def says_not_ready(self, pid: int) -> bool:
        """Whether its model said so with its last beat."""
        beat = self._last.get(pid)
        return beat is not None and not beat.is_ready

    def _beat(self, pid: int) -> _Beat | None:
        path, last = self._path(pid), self._last.get(pid)
        try:
            written_ns = path.stat().st_mtime_ns
            if last and last.written_ns == written_ns:
                return last
            return _Beat(written_ns, self._clock(), path.read_bytes() != b"0")
        except FileNotFoundError:
            return None
        except OSError:
            return last

    def _path(self, pid: int) -> Path:
        return Path(f"{self._prefix}{pid}")


class HangWatch:
    """Watches all processes of one ``serve``; ``say`` prints a line."""

    def __init__(
        self,
        server: TritonServer,
        answers: ServerAnswers,
        loader: ModelLoader,
        children: Children,
        health: Health,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server, self._answers, self._loader = server, answers, loader
        self._children, self._health, self._say = children, health, say
        self._hanging = HangingProcesses()
        self._heartbeats = Heartbeats(server.heartbeats, clock)
        self._num_looks = 0  # for loads, in which no process was on its way
        self._loads = Silence[tuple[str, str]](lambda: self._num_looks)
        self._loaded = Silence[tuple[str, str]](clock)
        self._models = Silence[str](clock)
        self._guard, self._tritonserver = 0, 0
        self.not_ready: set[str] = set()  # Triton's models of which a process says so

    def look(self, is_loading: bool) -> None:
        """Ends what hangs; to be called once a second. ``is_loading``: a model may be, which can
        keep threads of the server's.
        """
        servers, stubs = self._server_processes(), self._loader.stubs
        children = {child.pid: child for child in self._children.all if child.pid}
        self._heartbeats.look(stub.pid for stub in stubs)
        silent_s = {stub.pid: self._heartbeats.silent_s(stub.pid) for stub in stubs}
        silent_s |= dict.fromkeys(servers, self._server_silent_s(is_loading))
        silent_s |= {pid: child.silent_s for pid, child in children.items()}
        reasons = self._hanging.among(silent_s)
        for stub in stubs:
            if stub.pid in reasons:
                reason = f"its Python process {reasons[stub.pid]}"
                self._loader.end_processes(stub.model, Cause.HUNG, reason)
        for pid, child in children.items():
            if pid in reasons:
                self._say(child.end_now(reasons[pid]))
                self._health.set_child(child.name, child.why_not_up)
        for pid in servers:
            if pid in reasons:
                self._say(f"tritonserver {reasons[pid]} and is killed")
                self._server.kill()
                return
        says_so = self._heartbeats.says_not_ready
        self.not_ready = {stub.model for stub in stubs if says_so(stub.pid)}

    def end_unready(self, repository: Path) -> None:
        """Ends the processes of models that have said for a minute that they are not ready. Never
        a front: it waits for its engine.
        """
        late = self._models.longer_than(_NOT_READY_S, self.not_ready)
        self._models.begin_anew(late)
        for folder in late:
            if model_config.engine_of(repository / folder / CONFIG_FILE) is None:
                reason = "it said for a minute that it is not ready"
                self._loader.end_processes(folder, Cause.NOT_READY, reason)

    def hung_load(self, repository: Path) -> str:
        """A model whose load never ends, "" where there is none; to be called once a second. While
        Triton loads as many as it does at once, others wait for them. Ends the processes that have
        loaded and of which Triton takes no notice.
        """
        loads = {**dict.fromkeys(self._answers.loading, 0.0), **self._server.loads.under_way()}
        processes = {one: self._new_processes(*one, at_s) for one, at_s in loads.items()}
        lacking = [one for one in loads if self._lacks(*one, len(processes[one]), repository)]
        unnoticed = [
            one
            for one, pids in processes.items()
            if one not in lacking and pids and all(map(self._heartbeats.has_begun, pids))
        ]
        for one in self._loaded.longer_than(_LOADED_S, unnoticed):
            self._say(f"model '{one[0]}' has loaded unnoticed by Triton: its process is ended")
            self._loader.kill(one[0], processes[one])
        pids = {stub.pid for stub in self._loader.stubs}
        may_come = len(loads) - len(lacking) >= NUM_LOADERS
        may_come = may_come or (bool(lacking) and starts_another(self._tritonserver, pids))
        hung = self._loads.longer_than(_NO_PROCESS_S, lacking)
        self._num_looks += not may_come
        return hung[0][0] if hung else ""

    def _new_processes(self, model: str, version: str, began_s: float) -> frozenset[int]:
        """Those of a load, without those of the version before that go on serving."""
        own = (
            one.pid for one in self._loader.stubs if (one.model, one.version) == (model, version)
        )
        return frozenset(pid for pid in own if started_s(pid) >= began_s - _READ_LATE_S)

    def _lacks(self, model: str, version: str, num_processes: int, repository: Path) -> bool:
        """Whether a load has fewer processes of its own than it needs. Where the version before
        goes on serving, a part of the new one's may be enough.
        """
        num_needed = model_config.num_processes(repository / model / CONFIG_FILE)
        is_served = (model, version) not in self._answers.loading
        return num_processes < (min(1, num_needed) if is_served else num_needed)

    def leftovers(self) -> Leftovers:
        """What processes of models that died have left behind."""
        prefix, stubs = self._server.shared_memory_prefix, self._loader.stubs
        return left_behind(prefix, {stub.pid for stub in stubs})

    def _server_silent_s(self, is_loading: bool) -> float:
        silent_s = self._answers.silent_s
        return 0.0 if is_loading and silent_s < SILENT_THOUGH_BUSY_S else silent_s

    def _server_processes(self) -> list[int]:
        """The tritonserver, which answers for both, and the guard."""
        if self._guard != self._server.pid:
            self._loads.longer_than(0, ())
            self._tritonserver = server_process(self._server.pid) or 0
            self._guard = self._server.pid if self._tritonserver else 0
        return [pid for pid in (self._tritonserver, self._guard) if pid]
