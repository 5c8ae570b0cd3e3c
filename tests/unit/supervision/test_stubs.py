"""Finds the processes of models, tells which died and how, and counts what they left."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from generator.render import model_config
from hf_triton.runtime.devices.device import num_instances
from hf_triton.serving.supervision.stub_deaths import StubDeaths, are_too_many, left_behind
from hf_triton.tritonserver import stubs
from hf_triton.tritonserver.model_state import Cause
from hf_triton.tritonserver.stubs import End, Stub, StubEnds, find_stubs, started_s
from tests.support.triton import eventually
from tests.unit.supervision.fake_server import FakeEnds, FakeServer, deaths_of

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


def watched(server: FakeServer, end: End | None = None) -> StubDeaths:
    deaths = deaths_of(server, FakeEnds(end or End()))
    deaths.look(sweep=True)
    return deaths


def test_a_process_that_vanishes_from_a_ready_version_has_died() -> None:
    server = FakeServer("a", "b", counts={"a": 3})
    deaths = watched(server, End(Cause.KILLED, "killed by SIGKILL"))
    server.kill("a")
    (death,) = deaths.look()
    assert (death.folder, death.version) == ("a", "1")
    assert sorted(death.survivors) == server.pids("a")
    assert len(death.survivors) == 2
    assert death.reason == "its Python process died (killed by SIGKILL)"
    assert death.cause is Cause.KILLED
    assert deaths.is_dead(death)


def test_nothing_is_asked_while_nothing_changes() -> None:
    server = FakeServer("a")
    deaths = watched(server)
    asked = server.num_asked
    assert [deaths.look() for _ in range(9)] == [[]] * 9
    assert server.num_asked == asked


def test_an_unload_by_somebody_is_no_death() -> None:
    server = FakeServer("a", "b")
    deaths = watched(server)
    server.unload("a")
    assert deaths.look() == []
    server.states["b"] = "UNLOADING"
    server.kill("b")
    assert deaths.look() == []
    assert deaths.look(sweep=True) == []


def test_a_reload_by_somebody_between_two_looks_is_no_death() -> None:
    server = FakeServer("a")
    deaths = watched(server)
    server.unload("a")
    server.load("a")
    assert deaths.look() == []


def test_a_death_that_somebody_has_healed_meanwhile_is_none_any_more() -> None:
    server = FakeServer("a")
    deaths = watched(server)
    server.kill("a")
    (death,) = deaths.look()
    server.unload("a")
    assert not deaths.is_dead(death)
    server.load("a")
    assert not deaths.is_dead(death)


def test_one_that_died_before_it_was_ever_seen_is_found_by_a_sweep() -> None:
    server = FakeServer("a")
    server.kill("a")
    deaths = watched(server)
    (death,) = deaths.look(sweep=True)
    assert death.folder == "a"


def test_one_that_died_while_the_others_were_loading_is_found_by_a_sweep() -> None:
    server = FakeServer("a", counts={"a": 2})
    server.states["a"] = "LOADING"
    deaths = watched(server)
    server.kill("a")
    assert deaths.look() == []
    server.states["a"] = "READY"
    assert [death.folder for death in deaths.look(sweep=True)] == ["a"]


def test_fewer_instances_by_a_changed_config_are_no_death() -> None:
    server = FakeServer("a", counts={"a": 2})
    deaths = watched(server)
    server.counts["a"] = 1
    server.kill("a")
    assert deaths.look() == []


def test_models_of_other_backends_have_no_processes_to_lose() -> None:
    server = FakeServer()
    server.configs["native"] = {"backend": "onnxruntime"}
    server.load("native")
    assert watched(server).look(sweep=True) == []


def test_a_server_that_does_not_answer_hides_no_death() -> None:
    server = FakeServer("a")
    deaths = watched(server)
    server.kill("a")
    server.is_reachable = False
    assert deaths.look() == []
    server.is_reachable = True
    assert [death.folder for death in deaths.look()] == ["a"]


def test_another_version_of_the_model_does_not_make_up_for_it() -> None:
    server = FakeServer("a")
    deaths = watched(server)
    server.kill("a")
    server.stubs.add(Stub("a", "2", 5))
    assert [death.version for death in deaths.look(sweep=True)] == ["1"]


@pytest.mark.parametrize(
    "groups,expected",
    [
        ([], 1),
        ([{"count": 3}], 3),
        ([{"count": 2, "gpus": [0, 1]}, {"count": 1, "kind": "KIND_CPU"}], 5),
    ],
)
def test_every_gpu_of_a_group_has_its_instances(groups: list[object], expected: int) -> None:
    assert num_instances({"instance_group": groups}) == expected


@pytest.fixture
def prefix() -> Iterator[str]:
    name = f"hf_triton_test_{uuid.uuid4().hex}_"
    yield name
    for region in Path("/dev/shm").glob(f"{name}*"):
        region.unlink()


@pytest.mark.threat("leftovers-of-deaths")
def test_regions_that_no_living_process_uses_are_counted_also_without_zombies(prefix: str) -> None:
    """From 26.0x on a question whether a model is ready takes note of a dead process."""
    names = ["", "", "", "beat_7", "left_1"]
    unused, used, new, *others = (
        Path(f"/dev/shm/{prefix}{name or uuid.uuid4()}") for name in names
    )
    for region in (unused, used, new, *others):
        region.write_bytes(bytes(1 << 20))
        os.utime(region, None if region == new else (0, 0))
    size = os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize
    with used.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert left_behind(prefix, [os.getpid()]) == (1, (4 << 20) / size)
        assert left_behind(prefix, []) == (2, (5 << 20) / size)


@pytest.mark.threat("leftovers-of-deaths")
@pytest.mark.parametrize(
    "num, part, expected",
    [(0, 0.9, False), (1, 0.2, False), (1, 0.3, True), (23, 0.0, False), (24, 0.0, True)],
)
def test_too_many_are_what_a_container_has_no_room_for(
    num: int, part: float, expected: bool
) -> None:
    assert are_too_many(num, part) is expected
