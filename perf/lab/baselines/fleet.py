"""Keeps the servers that are measured: started when first needed, up while others are measured.

One that takes cores without requests, or for which there is no memory beside the others, is stopped
after each use and started again; one that can't be had is left out, with the reason.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from generator.errors import GeneratorError
from perf.environments import EnvironmentMissingError
from perf.lab.baselines.servers.processes import PeerError
from perf.lab.baselines.servers.start import Service
from perf.lab.baselines.targets import Variant
from perf.load.process import LevelError
from perf.usage import available_gib, idle_cores

MOST_IDLE_CORES = 0.1
RESERVE_GIB = 1.0  # of memory, left to others
CAN_FAIL = (
    EnvironmentMissingError,
    PeerError,
    LevelError,
    GeneratorError,
    subprocess.CalledProcessError,
    OSError,
)
Start = Callable[[Variant, bool], AbstractContextManager[Service]]


class LeftOutError(Exception):
    """A target that is not measured, with why."""


@dataclass
class Fleet:
    """``start`` is given a variant and whether it has to stream, ``warm_up`` what was started."""

    start: Start
    warm_up: Callable[[Service, bool], object]
    cores_of: Callable[[int], float] = idle_cores
    memory_gib: Callable[[], float] = available_gib
    left_out: dict[Variant, str] = field(default_factory=dict)  # with why
    restless: dict[Variant, float] = field(default_factory=dict)  # with the cores it takes idle
    crowded: bool = False  # whether memory did not hold all of them
    # Those that are up, each with what ends it.
    _up: dict[tuple[Variant, bool], tuple[Service, ExitStack]] = field(default_factory=dict)

    @contextmanager
    def using(self, variant: Variant, *, streaming: bool = False) -> Iterator[Service]:
        """``variant``, up and warm. Raises ``LeftOutError``."""
        if variant in self.left_out:
            raise LeftOutError(self.left_out[variant])
        key = (variant, streaming)
        if key not in self._up:
            self._start(variant, streaming)
        try:
            yield self._up[key][0]
        except CAN_FAIL as error:
            raise LeftOutError(self._gone(key, error)) from error
        finally:
            if variant in self.restless:
                self._stop(key)

    def close(self) -> None:
        for key in list(self._up):
            self._stop(key)

    def _start(self, variant: Variant, streaming: bool) -> None:
        stack, key = ExitStack(), (variant, streaming)
        try:
            self._make_room(variant)
            service = stack.enter_context(self.start(variant, streaming))
            self._up[key] = (service, stack)
            self.warm_up(service, streaming)
            cores = self.cores_of(service.pid)
        except CAN_FAIL as error:
            raise LeftOutError(self._gone(key, error)) from error
        if cores > MOST_IDLE_CORES:
            self.restless[variant] = cores

    def _make_room(self, variant: Variant) -> None:
        """Stops the others where memory doesn't hold them. Raises ``PeerError``."""
        needed_gib = variant.target.memory_gib + RESERVE_GIB
        if self._up and self.memory_gib() < needed_gib:
            self.crowded = True
            self.close()
        if (there := self.memory_gib()) < needed_gib:
            raise PeerError(f"needs {needed_gib:.1f} GiB of memory, {there:.1f} GiB are available")

    def _gone(self, key: tuple[Variant, bool], error: Exception) -> str:
        """Notes why it is left out from now on, with its last lines."""
        said = self._up[key][0].last_words().strip() if key in self._up else ""
        failed = str(getattr(error, "stderr", None) or error).strip()
        why = "\n".join(part for part in (failed, said) if part)
        self.left_out[key[0]] = why
        with suppress(*CAN_FAIL):
            self._stop(key)
        return why

    def _stop(self, key: tuple[Variant, bool]) -> None:
        if key in self._up:
            self._up.pop(key)[1].close()
