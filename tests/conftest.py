"""What all tests share: one thread for each computation, examples that are the same in every run,
the demo model's own answers, and what the runtime logs.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import hypothesis
import hypothesis.internal.conjecture.providers as providers
import pytest

if TYPE_CHECKING:
    from tests.scenarios.reference import Reference
    from tests.support.one_server import OneServer

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # In the background of a shell: commands that tests start would ignore their Ctrl-C too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # Under nohup: commands that tests start would outlive their terminal too.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

pytest.register_assert_rewrite("tests.scenarios")
gc.disable()  # until all is imported, of which nothing is garbage: a tenth of the time

LAYERS = ("served", "release", "system", "model", "unit")  # the folders of tests
# Files of tests/unit that wait more than they compute: last, they would hold up the end.
_WAITING = ("ports/test_http2.py", "sampling/test_grammar_processes.py")

_num_kept = 0  # modules that no collection of garbage looks at

# The same examples everywhere, however slow the machine; --hypothesis-profile=default tries others.
hypothesis.settings.register_profile(
    "same",
    max_examples=50,
    derandomize=True,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("same")
# Else it also draws texts and numbers of whichever modules of ours are imported, which it parses.
providers.is_local_module_file = lambda _path: False  # type: ignore[assignment, attr-defined]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--flaky",
        action="store_true",
        help="with --last-failed: list the tests that pass now as flaky",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that wait first: short ones fill the end, and processes end together."""

    def turn(item: pytest.Item) -> int:
        does_wait = item.nodeid.partition("::")[0].endswith(_WAITING)
        return -1 if does_wait else LAYERS.index(_layer(item.nodeid))

    items.sort(key=turn)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Of ``-n auto``: two more than cores, as tests of servers wait."""
    return len(os.sched_getaffinity(0)) + 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests run in one process, and all that share the one server do."""
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class FilesInOrder(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return "served" if _layer(nodeid) == "served" else str(super()._split_scope(nodeid))

    config.option.loadscopereorder = False
    return FilesInOrder(config, log)


def _layer(nodeid: str) -> str:
    return nodeid.split("/")[1]


def pytest_configure() -> None:
    from tests.support.tested_server import put_on_path

    put_on_path()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Says which server tests ran on, and names what failed before and passed now."""
    ran = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    if any(_layer(report.nodeid) in ("served", "system", "release") for report in ran):
        from tests.support.tested_server import description

        terminalreporter.write_line(description())
    if terminalreporter.config.option.flaky:
        passed, failed, broken = (
            {report.nodeid for report in terminalreporter.getreports(outcome)}
            for outcome in ("passed", "failed", "error")
        )
        names = sorted(passed - failed - broken)
        terminalreporter.section(f"flaky: {len(names)} failed at first and passed now")
        for name in names:
            terminalreporter.write_line(name)


def pytest_collection_finish() -> None:
    _keep_what_is_imported()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    if len(sys.modules) > _num_kept + 20:
        _keep_what_is_imported()


def _keep_what_is_imported() -> None:
    """What was imported stays: no collection of garbage, such as an engine's when it starts, need
    look at it again. transformers alone has a million objects.
    """
    global _num_kept
    _num_kept = len(sys.modules)
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def reference() -> Reference:
    """The demo model without a server: what every answer is compared with."""
    from tests.scenarios.reference import Reference  # torch, which most tests do without
    from tests.support.triton import DEMO_MODEL

    return Reference(DEMO_MODEL)


@pytest.fixture(scope="session")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneServer]:
    """A real server for all tests that neither end it nor count what it holds."""
    from tests.support.one_server import one_server

    with one_server(tmp_path_factory.mktemp("one_server")) as started:
        yield started


@pytest.fixture
def no_collection() -> Iterator[None]:
    """What is freed during a test is freed at once: a collection of garbage comes too rarely."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def log_lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines logged during a test, each after ``I``, ``W`` or ``E``."""

    from triton_python_backend_utils import Logger

    from hf_triton.runtime import log

    class Recorder(Logger):
        lines: ClassVar[list[str]] = []

    monkeypatch.setattr(log, "triton_logger", lambda: Recorder)
    monkeypatch.setattr(log, "names", [])
    return Recorder.lines
