"""What all tests share: one thread for each computation, examples that are the same in every run,
the demo model's own answers, and what the runtime logs.
"""

from __future__ import annotations

import gc
import os
import signal
from typing import TYPE_CHECKING, ClassVar

import hypothesis
import pytest

if TYPE_CHECKING:
    from tests.scenarios.reference import Reference

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # In the background of a shell: commands that tests start would ignore their Ctrl-C too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # Under nohup: commands that tests start would outlive their terminal too.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

pytest.register_assert_rewrite("tests.scenarios")

# The same examples everywhere, however slow the machine; --hypothesis-profile=default tries others.
hypothesis.settings.register_profile(
    "same",
    derandomize=True,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("same")


def pytest_collection_finish() -> None:
    """What was imported stays: no collection of garbage, such as an engine's when it starts, need
    look at it again.
    """
    gc.freeze()


@pytest.fixture(scope="session")
def reference() -> Reference:
    """The demo model without a server: what every answer is compared with."""
    from tests.scenarios.reference import Reference  # torch, which most tests do without
    from tests.support.triton import DEMO_MODEL

    return Reference(DEMO_MODEL)


@pytest.fixture
def log_lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines logged during a test, each after ``I``, ``W`` or ``E``."""

    from hf_runtime import log
    from triton_python_backend_utils import Logger

    class Recorder(Logger):
        lines: ClassVar[list[str]] = []

    monkeypatch.setattr(log, "_triton_logger", lambda: Recorder)
    monkeypatch.setattr(log, "_names", [])
    return Recorder.lines
