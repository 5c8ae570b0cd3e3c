"""Ends what hangs: tritonserver, its models' processes, and those beside it. They are then started
again like those that died.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from generator.render import model_config
from generator.render.digest import CONFIG_FILE
from hf_triton.serving.supervision.children import Children
from hf_triton.serving.supervision.hang_detection.dead_process_memory import Leftovers, left_behind
from hf_triton.serving.supervision.hang_detection.heartbeats import Heartbeats
from hf_triton.serving.supervision.hang_detection.hung_loads import HungLoads, starts_another
from hf_triton.serving.supervision.hang_detection.processes import (
    SILENT_THOUGH_BUSY_S,
    HangingProcesses,
)
from hf_triton.serving.supervision.hang_detection.server_answers import ServerAnswers
from hf_triton.serving.supervision.healing import Healer
from hf_triton.serving.supervision.health import Health
from hf_triton.tritonserver.loading import NUM_LOADERS
from hf_triton.tritonserver.model_state import Cause
from hf_triton.tritonserver.process import TritonServer
from hf_triton.tritonserver.stubs import server_process


class HangWatch:
    """Watches all processes of one ``serve``; ``say`` prints a line."""

    def __init__(
        self,
        server: TritonServer,
        answers: ServerAnswers,
        healer: Healer,
        children: Children,
        health: Health,
        say: Callable[[str], None],
    ) -> None:
        self._server, self._answers, self._healer = server, answers, healer
        self._children, self._health, self._say = children, health, say
        self._hanging, self._hung_loads = HangingProcesses(), HungLoads()  # of one tritonserver
        self._heartbeats = Heartbeats(server.heartbeats)
        self._guard, self._tritonserver = 0, 0

    def look(self, is_loading: bool) -> None:
        """Ends what hangs; to be called once a second. ``is_loading``: a model may be, which can
        keep threads of the server's.
        """
        servers, stubs = self._server_processes(), self._healer.stubs
        children = {child.pid: child for child in self._children.all if child.pid}
        self._heartbeats.look(stub.pid for stub in stubs)
        silent_s = {stub.pid: self._heartbeats.silent_s(stub.pid) for stub in stubs}
        silent_s |= dict.fromkeys(servers, self._server_silent_s(is_loading))
        silent_s |= {pid: child.silent_s for pid, child in children.items()}
        reasons = self._hanging.among(silent_s)
        for stub in stubs:
            if stub.pid in reasons:
                reason = f"its Python process {reasons[stub.pid]}"
                self._healer.end_processes(stub.model, Cause.HUNG, reason)
        for pid, child in children.items():
            if pid in reasons:
                self._say(child.end_now(reasons[pid]))
                self._health.set_child(child.name, child.why_not_up)
        for pid in servers:
            if pid in reasons:
                self._say(f"tritonserver {reasons[pid]} and is killed")
                self._server.kill()
                return

    def hung_load(self, repository: Path) -> str:
        """A model whose load never ends, "" where there is none; to be called once a second. While
        Triton loads as many as it does at once, others wait for them.
        """
        stubs, loading = self._healer.stubs, self._answers.loading
        living = Counter((stub.model, stub.version) for stub in stubs)
        lacking = [
            version
            for version in loading
            if living[version] < model_config.num_processes(repository / version[0] / CONFIG_FILE)
        ]
        pids = {stub.pid for stub in stubs}
        may_come = len(loading) - len(lacking) >= NUM_LOADERS
        may_come = may_come or (bool(lacking) and starts_another(self._tritonserver, pids))
        return self._hung_loads.look(lacking, may_come=may_come)

    def leftovers(self) -> Leftovers:
        """What processes of models that died have left behind."""
        prefix, stubs = self._server.shared_memory_prefix, self._healer.stubs
        return left_behind(prefix, {stub.pid for stub in stubs})

    def not_ready(self) -> set[str]:
        """Triton's models of which a process says that it is not ready."""
        says_so = self._heartbeats.says_not_ready
        return {stub.model for stub in self._healer.stubs if says_so(stub.pid)}

    def _server_silent_s(self, is_loading: bool) -> float:
        silent_s = self._answers.silent_s
        return 0.0 if is_loading and silent_s < SILENT_THOUGH_BUSY_S else silent_s

    def _server_processes(self) -> list[int]:
        """The tritonserver, which answers for both, and the guard."""
        if self._guard != self._server.pid:
            self._hung_loads = HungLoads()
            self._tritonserver = server_process(self._server.pid) or 0
            self._guard = self._server.pid if self._tritonserver else 0
        return [pid for pid in (self._tritonserver, self._guard) if pid]
