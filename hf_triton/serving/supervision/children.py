"""The processes that one ``serve`` runs beside tritonserver: that of its ports."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from hf_triton.ports.openai.curl_lines import OpenAiApi
from hf_triton.ports.retries import Demand, Models, demand_of, line_of
from hf_triton.ports.settings import EVERYBODY, Access
from hf_triton.serving.supervision.health import Health
from hf_triton.tritonserver.child_process import STOP_TIMEOUT_S, ChildProcess


@dataclass(frozen=True)
class Children:
    """They listen while tritonserver starts, and answer that it does. ``openai_api`` is what they
    show of OpenAI's API, and ``access`` what callers need.
    """

    all: tuple[ChildProcess, ...] = ()
    openai_api: OpenAiApi | None = None
    access: Access = EVERYBODY

    @property
    def have_ended(self) -> bool:
        """Whether none of them runs."""
        return all(child.has_ended for child in self.all)

    def begin_start(self) -> None:
        """Starts them without waiting."""
        for child in self.all:
            child.begin_start()

    def wait_until_they_listen(self) -> None:
        """Raises ServerError where one does not start."""
        for child in self.all:
            child.wait_until_it_listens()

    def revive(self, health: Health, say: Callable[[str], None]) -> None:
        """Starts those again that have died, and tells of it."""
        for child in self.all:
            message = child.revive()
            if message:
                say(message)
                health.set_child(child.name, child.why_not_up)

    def tell(self, models: Models) -> None:
        """Tells them which models are to come back, and which have died."""
        line = line_of(models)
        for child in self.all:
            child.tell(line)

    def demands(self) -> list[Demand]:
        """What each says of the models that are loaded on demand."""
        return [demand_of(child.said) for child in self.all]

    def begin_stop(self) -> None:
        """They accept nothing more; what is in flight goes on while Triton answers it."""
        for child in self.all:
            child.begin_stop()

    def end(self) -> None:
        """Ends them, once Triton has ended."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for child in self.all:
            child.end(deadline)

    def kill(self) -> None:
        """Ends them at once."""
        for child in self.all:
            child.kill()
