"""Ends what hangs: tritonserver, its models' processes, and that of the ports. They are then
started again like those that died.

One rule: what has work hangs if it is silent for too long, or was stopped. A process beats or
answers. A process that is slow, because it computes or because the machine is busy with others,
does not hang: it uses the processor, or waits for it or for a disk. A model says that it is ready.
A load has a process: Triton 24.10 waits for ever for one that dies in its first moments, and loads
nothing more by that name. It also waits for ever for the end of one that got no processor for a
second and then loaded.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from generator.errors import ServerError
from generator.render import model_config
from generator.render.manifest import CONFIG_FILE
from hf_triton.serving.supervision.model_loader import ModelLoader
from hf_triton.tritonserver.child_process import ChildProcess
from hf_triton.tritonserver.http_api import NUM_LOADERS, ModelVersion, ServerApi
from hf_triton.tritonserver.model_state import Cause, Seen
from hf_triton.tritonserver.process import TritonServer
from hf_triton.tritonserver.stubs import server_process, started_s, starts_another, stat_fields
from hf_triton.tritonserver.triton_texts import LOADING, READY

# The seconds of silence after which something hangs.
LIMITS_S = {
    "stopped": 5.0,  # a stop that is shorter may be a tool's that looks into the process
    "idle": 8.0,
    "busy": 45.0,  # longer than anything that it should do without a word
    # The engine's own watchdog has waited before (watchdog_s). What it waits for may still end: a
    # step on a GPU leaves the processor idle, so nobody can tell it from one that never does.
    "not ready": 60.0,
    "no process": 15.0,  # a load's is there within one, where there are cores
    "unnoticed": 15.0,  # Triton takes what has loaded at once
}
# Of one core. Threads of Python that wait for one that never lets go of the interpreter wake up
# 2,000 times a second, and use a tenth.
_BUSY_SHARE = 0.25
_UNSURE_S, _WATCHED_S = 2.0, 4.0
# It may be ourselves who were stopped in between.
_NUM_LOOKS = 3
# One that waits for a core or a disk is never found asleep.
_NUM_ASLEEP = 2
_READ_LATE_S = 2.0  # the log's line may be read so long after it was written
# Some of the server's threads may be kept busy by a load, and a question that lands on one waits.
_NOT_UP_AFTER_S = 5.0
_LACKED_HERE = (errno.EMFILE, errno.ENFILE)  # by this process itself

_Load = tuple[str, str]  # Triton's model, its version
_Silent = tuple[str, str, str]  # one of LIMITS_S, and the same; no version where it is of all


class ServerAnswers:
    """Asks a tritonserver what it serves, and follows for how long it has not answered."""

    def __init__(self, server: ServerApi, clock: Callable[[], float] = time.monotonic) -> None:
        self._server, self._clock = server, clock
        self.server_started()

    def server_started(self) -> None:
        """The server was started again and is up."""
        self._answered_at_s = self._heard_at_s = self._clock()
        self.answered_last = True
        self.loading: frozenset[tuple[str, str]] = frozenset()  # when last told

    @property
    def is_up(self) -> bool:
        """True if it has said lately what it serves."""
        return self._clock() - self._answered_at_s < _NOT_UP_AFTER_S

    @property
    def silent_s(self) -> float:
        """Seconds since it last showed that it lives."""
        return self._clock() - self._heard_at_s

    def states(self) -> dict[str, Seen] | None:
        """The models that the server knows, or None if it does not answer. A server that did not
        answer last is asked first if it is live, which it can answer while it is busy.
        """
        try:
            if not self.answered_last and self._server.is_live():
                self._heard_at_s = self._clock()
            versions = self._server.index()
        except (OSError, ServerError) as error:
            if isinstance(error, ServerError) or error.errno in _LACKED_HERE:
                self._heard_at_s = self._clock()
            self.answered_last = False
            return None
        self._answered_at_s = self._heard_at_s = self._clock()
        self.answered_last = True
        loading = (entry for entry in versions if entry.state == LOADING)
        self.loading = frozenset((entry.model, entry.version) for entry in loading)
        return _states(versions)


def _states(versions: Sequence[ModelVersion]) -> dict[str, Seen]:
    """For each model whether a version is ready, or is being loaded, or why none is."""
    found: dict[str, Seen] = {}
    for entry in versions:
        reason = f"{entry.model} is {entry.state or 'not loaded'}"
        reason += f": {entry.reason}" if entry.reason else ""
        before = found.get(entry.model, Seen())
        is_ready = before.is_ready or entry.state == READY
        is_loading = before.is_loading or entry.state == LOADING
        found[entry.model] = Seen(is_ready, is_loading, "" if is_ready else reason)
    return found


@dataclass(frozen=True)
class Activity:
    """A process as the kernel sees it: whether it was stopped, whether every thread of it sleeps
    (none runs, or waits for a core or a disk), and the seconds of processor time that it has used.
    """

    is_stopped: bool
    sleeps: bool
    cpu_s: float


def activity(pid: int, with_threads: bool = True) -> Activity | None:
    """Returns None for a process that ended, or that a debugger holds. ``with_threads``: look at
    each, of which a server has hundreds.
    """
    try:
        process = Path(f"/proc/{pid}")
        state, cpu_s = _state(process)
        if state == "t":
            return None
        threads = (process / "task").iterdir() if with_threads else ()
        return Activity(state == "T", all(_state(one)[0] == "S" for one in threads), cpu_s)
    except (OSError, IndexError, ValueError):
        return None


def _state(folder: Path) -> tuple[str, float]:
    """A process's state, a letter of proc_pid_stat(5), and its user and system time in seconds."""
    fields = stat_fields(folder)
    return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class _Watched:
    """A process that may hang since ``since_s``, and its processor time by then."""

    since_s: float
    cpu_s: float
    is_stopped: bool
    num_looks: int = 0
    num_asleep: int = 0


class HangingProcesses:
    """Follows some processes; to be asked about all of them once a second or so."""

    def __init__(
        self,
        look: Callable[[int, bool], Activity | None] = activity,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look, self._clock = look, clock
        self._watched: dict[int, _Watched] = {}

    def among(self, silent_s: Mapping[int, float]) -> dict[int, str]:
        """The processes that hang, and why. ``silent_s``: seconds since each was heard of."""
        self._watched = {pid: seen for pid, seen in self._watched.items() if pid in silent_s}
        reasons = {pid: self._why(pid, seconds) for pid, seconds in silent_s.items()}
        return {pid: reason for pid, reason in reasons.items() if reason}

    def _why(self, pid: int, silent_s: float) -> str:
        is_silent = silent_s >= _UNSURE_S
        now = self._look(pid, is_silent)
        if now is None or not (is_silent or now.is_stopped):
            self._watched.pop(pid, None)
            return ""
        at_s, seen = self._clock(), self._watched.get(pid)
        if (
            seen is None
            or now.is_stopped != seen.is_stopped
            or (seen.is_stopped and seen.cpu_s < now.cpu_s)
        ):
            seen = self._watched[pid] = _Watched(at_s, now.cpu_s, now.is_stopped)
        seen.num_looks += 1
        seen.num_asleep += now.sleeps
        if seen.num_looks < _NUM_LOOKS:
            return ""
        watched_s = at_s - seen.since_s
        if now.is_stopped:
            return "was stopped" if watched_s >= LIMITS_S["stopped"] else ""
        used_s = now.cpu_s - seen.cpu_s
        is_idle = seen.num_asleep >= _NUM_ASLEEP and used_s <= watched_s * _BUSY_SHARE
        is_hung = is_idle and silent_s >= LIMITS_S["idle"] and watched_s >= _WATCHED_S
        if is_hung or silent_s >= LIMITS_S["busy"]:
            return f"has not answered for {silent_s:.0f} s"
        return ""


@dataclass(frozen=True)
class _Beat:
    written_ns: int
    seen_at_s: float
    is_ready: bool


class HangWatch:
    """A model's process writes a file once a second, and in it whether its model is ready; one of a
    model that is not ours has none.
    """

    def __init__(
        self,
        server: TritonServer,
        answers: ServerAnswers,
        loader: ModelLoader,
        ports: ChildProcess,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server, self._answers, self._loader = server, answers, loader
        self._ports, self._say, self._clock = ports, say, clock
        self.hanging = HangingProcesses()
        self._beats: dict[int, _Beat] = {}  # the last one of each process
        # So often, once a second, models and loads were found silent. While we were stopped
        # ourselves nobody looked.
        self._num_silent: dict[_Silent, int] = {}
        self._guard, self._tritonserver = 0, 0
        self.not_ready: set[str] = set()  # Triton's models of which a process says so

    def look(self, is_loading: bool) -> None:
        """Ends what hangs. ``is_loading``: a load may keep threads of the server's busy."""
        servers, stubs, ports = self._server_processes(), self._loader.stubs, self._ports.pid
        pids = {stub.pid for stub in stubs}
        self._read_beats(pids)
        now, silent_s = self._clock(), dict.fromkeys(pids, 0.0)
        silent_s |= {pid: now - beat.seen_at_s for pid, beat in self._beats.items()}
        server_silent_s = self._answers.silent_s
        if is_loading and server_silent_s < LIMITS_S["busy"]:
            server_silent_s = 0.0
        silent_s |= dict.fromkeys(servers, server_silent_s)
        if ports:
            silent_s[ports] = self._ports.silent_s
        reasons = self.hanging.among(silent_s)
        for stub in stubs:
            if stub.pid in reasons:
                reason = f"its Python process {reasons[stub.pid]}"
                self._loader.end_processes(stub.model, Cause.HUNG, reason)
        if ports and ports in reasons:
            self._say(self._ports.end_now(reasons[ports]))
        for pid in servers:
            if pid in reasons:
                self._say(f"tritonserver {reasons[pid]} and is killed")
                self._server.kill()
                return
        not_ready = {pid for pid, beat in self._beats.items() if not beat.is_ready}
        self.not_ready = {stub.model for stub in stubs if stub.pid in not_ready}

    def _read_beats(self, pids: Set[int]) -> None:
        for ended in self._beats.keys() - pids:
            with contextlib.suppress(OSError):
                Path(f"{self._server.heartbeats}{ended}").unlink(missing_ok=True)
        beats = {pid: self._beat(pid) for pid in pids}
        self._beats = {pid: beat for pid, beat in beats.items() if beat}

    def _beat(self, pid: int) -> _Beat | None:
        """The last beat, or None before the first, which comes once its model has loaded."""
        path, last = Path(f"{self._server.heartbeats}{pid}"), self._beats.get(pid)
        try:
            written_ns = path.stat().st_mtime_ns
            if last and last.written_ns == written_ns:
                return last
            return _Beat(written_ns, self._clock(), path.read_bytes() != b"0")
        except FileNotFoundError:
            return None
        except OSError:
            return last

    def look_at_models(self, repository: Path) -> str:
        """Ends the processes of models that have said for too long that they are not ready, and
        those that have loaded and of which Triton takes no notice. Returns a model whose load never
        ends, "" where there is none.
        """
        processes, silent = self._loads(repository)
        silent |= {("not ready", folder, ""): True for folder in self.not_ready}
        before, hung = self._num_silent, ""
        self._num_silent = {one: before.get(one, -1) + counts for one, counts in silent.items()}
        for one in [one for one, num in self._num_silent.items() if num >= LIMITS_S[one[0]]]:
            way, model, version = one
            del self._num_silent[one]  # its time starts anew
            if way == "no process":
                hung = model
            elif way == "unnoticed":
                self._say(f"Triton missed that model '{model}' has loaded: its process is ended")
                self._loader.kill(model, processes[model, version])
            elif model_config.engine_of(repository / model / CONFIG_FILE) is None:
                # Never a front: it waits for its engine.
                reason = "it said for a minute that it is not ready"
                self._loader.end_processes(model, Cause.NOT_READY, reason)
        return hung

    def _loads(self, repository: Path) -> tuple[dict[_Load, frozenset[int]], dict[_Silent, bool]]:
        """The loads under way with their processes, and those that are silent, each with whether it
        counts: while Triton loads as many as it does at once, others wait for them.
        """
        loads = {**dict.fromkeys(self._answers.loading, 0.0), **self._server.loads.under_way}
        processes = {load: self._new_processes(*load, at_s) for load, at_s in loads.items()}
        lacking, silent = list[_Load](), dict[_Silent, bool]()
        for load, pids in processes.items():
            num_needed = model_config.num_processes(repository / load[0] / CONFIG_FILE)
            # One process of a new version is enough while the old one serves.
            is_served = load not in self._answers.loading
            if len(pids) < (min(1, num_needed) if is_served else num_needed):
                lacking.append(load)
            elif pids and pids <= self._beats.keys():
                silent["unnoticed", load[0], load[1]] = True
        known = {stub.pid for stub in self._loader.stubs}
        may_come = len(loads) - len(lacking) >= NUM_LOADERS
        may_come = may_come or (bool(lacking) and starts_another(self._tritonserver, known))
        return processes, silent | {("no process", *load): not may_come for load in lacking}

    def _new_processes(self, model: str, version: str, began_s: float) -> frozenset[int]:
        """The processes of a load; those of the same version that served before are left out."""
        return frozenset(
            stub.pid
            for stub in self._loader.stubs
            if (stub.model, stub.version) == (model, version)
            and started_s(stub.pid) >= began_s - _READ_LATE_S
        )

    def _server_processes(self) -> list[int]:
        """The tritonserver, which answers for both, and the guard."""
        if self._guard != self._server.pid:
            self._num_silent = {}  # of a new server nothing hangs yet
            self._tritonserver = server_process(self._server.pid) or 0
            self._guard = self._server.pid if self._tritonserver else 0
        return [pid for pid in (self._tritonserver, self._guard) if pid]
