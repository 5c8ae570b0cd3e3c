"""Finds the processes of a group that are models'."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from generator.render import model_config
from hf_triton.serving.supervision.stub_deaths import left_behind
from hf_triton.tritonserver import stubs
from hf_triton.tritonserver.model_state import Cause
from hf_triton.tritonserver.stubs import End, Stub, StubEnds, find_stubs, started_s
from tests.support.triton import eventually

REAPS = """
import os, signal
pid = os.fork()
if pid == 0:
    signal.pause()
print(pid, flush=True)
input()
os.waitpid(pid, 0)
print("reaped", flush=True)
input()
"""
SERVER = "import subprocess, sys; subprocess.run(sys.argv[1:]); input()"
MODEL = "import os, time; os.fork(); os.write(1, b'%d\\n' % os.getpid()); time.sleep(600)"


def test_what_a_stub_has_forked_is_no_stub_and_does_not_hide_its_death(tmp_path: Path) -> None:
    stub = tmp_path / "triton_python_backend_stub"
    stub.symlink_to(sys.executable)
    model_file = tmp_path / "a" / "1" / "model.py"
    model_file.parent.mkdir(parents=True)
    model_file.write_text(MODEL)
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(stub), str(model_file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as server:
        try:
            assert server.stdout
            both = {int(server.stdout.readline()), int(server.stdout.readline())}
            [found] = find_stubs(server.pid)
            assert found == Stub("a", "1", found.pid)
            assert found.pid in both
            os.kill(found.pid, signal.SIGKILL)
            assert eventually(lambda: find_stubs(server.pid) == frozenset())
            [fork] = both - {found.pid}
            assert Path(f"/proc/{fork}").exists()
        finally:
            os.killpg(server.pid, signal.SIGKILL)


def test_a_process_that_can_not_be_looked_at_now_has_not_died(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lack(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    group = os.getpgid(0)
    monkeypatch.setattr(psutil, "Process", lack)
    with pytest.raises(OSError, match="Too many"):
        find_stubs(group)
    monkeypatch.setattr(Path, "read_text", lack)
    looks: tuple[Callable[[], object], ...] = (
        lambda: started_s(os.getpid()),
        lambda: left_behind("hf_triton_none_", [os.getpid()]),
        lambda: model_config.load_of(Path("config.pbtxt")),
    )
    for look in looks:
        with pytest.raises(OSError, match="Too many"):
            look()


@pytest.mark.parametrize(
    "number, num_out_of_memory, end",
    [
        (9, [7, 7], End(Cause.KILLED, "killed by SIGKILL")),
        (9, [7, 8], End(Cause.OUT_OF_MEMORY, "killed by SIGKILL: out of memory")),
        (9, [None, None], End(Cause.OUT_OF_MEMORY, "killed by SIGKILL: out of memory?")),
        (15, [7, 7], End(Cause.KILLED, "killed by SIGTERM")),
        (11, [7, 7], End(Cause.CRASHED, "killed by SIGSEGV")),
        (40, [7, 7], End(Cause.CRASHED, "killed by signal 40")),
    ],
)
def test_how_one_ended_is_known_after_its_server_has_taken_note_of_it(
    number: int, num_out_of_memory: list[int | None], end: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stubs, "num_out_of_memory", iter(num_out_of_memory).__next__)
    ends = StubEnds()
    with subprocess.Popen(
        [sys.executable, "-c", REAPS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin
        assert server.stdout
        stub = Stub("a", "1", int(server.stdout.readline()))
        assert ends.watched([stub]) == ends.watched([stub]) == {stub}
        assert ends.how(stub.pid) == ends.last_of({"a"}, 0.0) == End()
        os.kill(stub.pid, number)
        assert eventually(lambda: ends.last_of({"a"}, 0.0) == end)
        server.stdin.write("\n")
        server.stdin.flush()
        assert server.stdout.readline() == "reaped\n"
        assert not Path(f"/proc/{stub.pid}").exists()
        assert ends.how(stub.pid) == ends.last_of({"a"}, 0.0) == end
        assert ends.last_of({"b"}, 0.0) == ends.last_of({"a"}, time.monotonic()) == End()
        server.kill()
