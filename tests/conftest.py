"""What all tests share: one thread for each computation, examples that are the same in every run,
the demo model's own answers, and what the runtime logs.
"""

from __future__ import annotations

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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What several processes run side by side (``pytest -n 2 --dist loadgroup``): whole files, and
    in one process those files of a folder that share its server.
    """
    for item in items:
        shares = "triton" in getattr(item, "fixturenames", ())
        own = hasattr(getattr(item, "module", None), "triton")
        group = item.path.parent if shares and not own else item.path
        item.add_marker(pytest.mark.xdist_group(str(group.relative_to(item.config.rootpath))))


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
