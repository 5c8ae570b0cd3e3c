"""Constraints that never end, or take all memory, end their own process and nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from hf_triton.runtime.errors import OverloadedError, RequestError
from hf_triton.runtime.sandbox import pool, worker
from hf_triton.runtime.sandbox.pool import Process
from hf_triton.text_generation.structured import compiling, grammar_process
from hf_triton.text_generation.structured.compiling import Compiler, GrammarProcesses, Started
from hf_triton.text_generation.structured.constraint import Constraint
from hf_triton.text_generation.structured.grammar import Following, Grammar, wait_for_masks
from hf_triton.text_generation.structured.grammar_process import read_tokenizer
from tests.support.triton import ROOT, eventually

MIB = 2**20
_STEP_S = "hf_triton.text_generation.structured.grammar.STEP_S"
_MAX_PROCESS_BYTES = "hf_triton.text_generation.structured.grammar.MAX_PROCESS_BYTES"
SMALL = Constraint("regex", ("[a-c]+d",))
LARGE = "a{900000000}"  # about 100 MiB


class ByteTokenizer:
    """A token for each byte, and one that ends texts; as transformers' fast tokenizers look."""

    def __init__(self) -> None:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocabulary = {character: number for number, character in enumerate(alphabet)}
        self.backend_tokenizer = Tokenizer(models.BPE({**vocabulary, "<end>": 256}, []))
        self.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.backend_tokenizer.decoder = decoders.ByteLevel()
        self.eos_token_id = 256
        self.added_tokens_decoder: dict[int, Any] = {}
        self.ids = vocabulary

    def __len__(self) -> int:
        return 257


def endless(number: int = 0) -> Constraint:
    """Thirty expressions that llguidance follows in every combination; each number gives others."""
    parts = " & ".join(f"/(?s:.*)a{i}b(?s:.*)c{number}(?s:.*)/" for i in range(30))
    return Constraint("grammar", (f"start: A\nA: {parts}",))


@pytest.fixture
def processes() -> Iterator[GrammarProcesses]:
    processes = GrammarProcesses(ByteTokenizer(), 257, [256])
    processes.prepare()
    yield processes
    processes.close()


def made(processes: GrammarProcesses, constraint: Constraint) -> Following:
    following = processes.begin(constraint, 60.0)
    assert following.wait(70.0)
    return following


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(one) for one in listed.split()]


def program_ids() -> list[int]:
    """The program that makes grammars, if it runs; each test has one."""
    name = pool.name_of(read_tokenizer)
    own = psutil.Process().children()
    return [process.pid for process in own if name in process.cmdline()]


def program_id() -> int:
    (pid,) = program_ids()
    return pid


def follow_often(grammar: Grammar, token_id: int) -> None:
    for _ in range(3):
        grammar.follow(token_id)


class Told:
    """Waits for what a Compiler tells."""

    def __init__(self, compiler: Compiler, *constraints: Constraint) -> None:
        self._said: list[Started | Exception] = []
        self._done = threading.Event()
        compiler.when_ready(constraints, self._take, self._take)

    def _take(self, answer: Started | Exception) -> None:
        self._said.append(answer)
        self._done.set()

    def wait(self) -> Started | Exception:
        assert self._done.wait(60)
        [answer] = self._said
        return answer


@pytest.mark.threat("endless-grammars")
def test_six_that_never_end_delay_nobody_and_are_gone_in_time(
    processes: GrammarProcesses,
) -> None:
    compiler = Compiler(processes, time_limit_s=2.0)
    assert isinstance(Told(compiler, SMALL).wait(), dict)
    began_s = time.monotonic()
    hostile = [Told(compiler, endless(40 + number)) for number in range(6)]
    time.sleep(0.1)
    others = []
    for number in range(5):
        asked_s = time.monotonic()
        assert isinstance(Told(compiler, Constraint("regex", (f"a{number}",))).wait(), dict)
        others.append(time.monotonic() - asked_s)
    said = [told.wait() for told in hostile]
    assert time.monotonic() - began_s < 15
    assert sorted(others)[2] < 2, others
    assert all(isinstance(one, RequestError | OverloadedError) for one in said)
    assert any("takes more than 2 s to prepare (max_grammar_s)" in str(one) for one in said)
    # Kept processes go on, and no other is left.
    assert eventually(lambda: len(children(program_id())) == 6)
    assert isinstance(Told(compiler, SMALL).wait(), dict)
    compiler.close()


@pytest.mark.threat("endless-grammars")
def test_of_those_that_take_long_one_goes_on_and_others_are_refused_for_now(
    processes: GrammarProcesses,
) -> None:
    compiler = Compiler(processes, time_limit_s=600.0)
    first = Told(compiler, endless())
    assert eventually(takes_long)
    others = [Told(compiler, endless(40 + number)) for number in range(4)]
    assert isinstance(Told(compiler, SMALL).wait(), dict)
    for told in others:
        said = told.wait()
        assert isinstance(said, OverloadedError)
        assert "grammar are being prepared: try again later" in str(said)
    os.kill(children(program_id())[0], signal.SIGKILL)
    said = first.wait()
    assert isinstance(said, OverloadedError), "it is no fault of its caller"
    assert "went away before it answered: try again" in str(said)
    again = Told(compiler, endless())  # neither kept nor refused for ever
    assert eventually(takes_long)
    compiler.close()
    assert "is being unloaded" in str(again.wait())


def takes_long() -> bool:
    """Whether a grammar is made that others have to let go on."""
    for process in psutil.Process(program_id()).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            if times.user + times.system > 1 and process.status() != psutil.STATUS_ZOMBIE:
                return True
    return False


def test_a_model_that_is_unloaded_does_not_wait_for_what_never_ends(
    processes: GrammarProcesses,
) -> None:
    compiler = Compiler(processes, time_limit_s=600.0)
    hostile = [Told(compiler, endless(40 + number)) for number in range(6)]
    assert eventually(lambda: bool(program_ids() and children(program_id())))
    began_s = time.monotonic()
    compiler.close()
    assert time.monotonic() - began_s < 5
    assert all(isinstance(told.wait(), OverloadedError) for told in hostile)


def test_a_fork_that_begins_while_the_program_ends_does_not_outlive_it() -> None:
    for delay_s in (0.0, 0.0005, 0.001, 0.002, 0.004):
        processes = GrammarProcesses(ByteTokenizer(), 257, [256])
        begun = [processes.begin(endless(), 20.0) for _ in range(4)]
        time.sleep(delay_s)
        processes.close()
        assert all(following.wait(10.0) for following in begun)


def test_what_is_kept_is_made_again_where_its_process_was_killed(
    processes: GrammarProcesses,
) -> None:
    compiler = Compiler(processes, time_limit_s=60.0)
    first = Told(compiler, SMALL).wait()
    (worker,) = children(program_id())
    os.kill(worker, signal.SIGKILL)
    assert eventually(lambda: psutil.Process(worker).status() == psutil.STATUS_ZOMBIE)
    again = Told(compiler, SMALL).wait()
    assert isinstance(first, dict)
    assert isinstance(again, dict)
    assert again[SMALL] is not first[SMALL]
    grammar = again[SMALL]()
    grammar.follow(ByteTokenizer().ids["a"])
    compiler.close()


@pytest.mark.threat("endless-grammars")
def test_what_takes_too_much_memory_ends_alone(
    processes: GrammarProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    neighbour = made(processes, SMALL)()
    monkeypatch.setattr(_MAX_PROCESS_BYTES, 64 * MIB)
    assert made(processes, Constraint("regex", (LARGE,))).process.has_ended
    neighbour.follow(ByteTokenizer().ids["a"])
    assert not neighbour.is_complete


@pytest.mark.threat("endless-grammars")
def test_a_token_that_takes_too_long_ends_the_process(
    processes: GrammarProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    neighbour = made(processes, Constraint("regex", ("a+",)))()
    following = made(processes, SMALL)
    with monkeypatch.context() as patched:
        patched.setattr(_STEP_S, 1e-6)
        with pytest.raises(RequestError, match="regex: too complex to follow any further"):
            follow_often(following(), ByteTokenizer().ids["a"])
    assert following.process.has_ended
    follow_often(neighbour, ByteTokenizer().ids["a"])
    assert eventually(lambda: len(children(program_id())) == 1)


@pytest.mark.threat("endless-grammars")
def test_all_together_have_a_limit_and_the_largest_goes_first(
    processes: GrammarProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = made(processes, SMALL)
    first = made(processes, Constraint("regex", (LARGE,)))
    assert 60 * MIB < first.num_bytes < 400 * MIB
    monkeypatch.setattr(compiling, "MAX_BYTES", first.num_bytes + 40 * MIB)
    second = made(processes, Constraint("regex", (LARGE + "b",)))
    assert first.process.has_ended or second.process.has_ended
    assert not small.process.has_ended
    assert processes.num_bytes <= compiling.MAX_BYTES
    assert eventually(lambda: len(children(program_id())) == 2)


def test_a_process_ends_when_nothing_refers_to_it(processes: GrammarProcesses) -> None:
    following = made(processes, SMALL)
    grammar = following()
    grammar.follow(ByteTokenizer().ids["a"])
    del following
    assert len(children(program_id())) == 1
    del grammar
    assert eventually(lambda: not children(program_id()))
    assert not processes.num_bytes


@pytest.mark.threat("grammar-processes")
def test_a_busy_process_ends_too_when_nothing_refers_to_it(processes: GrammarProcesses) -> None:
    following = processes.begin(endless(), 600.0)
    assert not following.wait(0.2)
    assert len(children(program_id())) == 1
    del following
    assert eventually(lambda: not children(program_id()))


def test_more_different_ones_than_may_be_open_are_refused(
    processes: GrammarProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "MAX_PROCESSES", 2)
    kept = [made(processes, Constraint("regex", (text,))) for text in "ab"]
    with pytest.raises(OverloadedError, match="2 different constraints are in use, allowed: at"):
        processes.begin(SMALL, 1.0)
    assert not processes.num_bytes  # small ones don't count towards MAX_BYTES
    kept.pop()
    made(processes, SMALL)


def test_the_program_that_died_is_started_again(processes: GrammarProcesses) -> None:
    before, held = program_id(), made(processes, SMALL)
    grammar = held()
    (worker,) = children(before)
    os.kill(before, signal.SIGKILL)
    assert eventually(lambda: not Path("/proc", str(worker)).exists())
    with pytest.raises(OverloadedError, match="went away before it answered: try again"):
        follow_often(grammar, ByteTokenizer().ids["a"])
    assert held.process.has_ended
    assert not made(processes, SMALL).process.has_ended
    assert program_id() != before


KILLED = """
import os, signal, sys
from tests.unit.sampling.test_grammar_processes import *
processes = GrammarProcesses(ByteTokenizer(), 257, [256])
busy = processes.begin(endless(), 600.0)
busy.wait(0.5)
print(program_id(), *children(program_id()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.threat("grammar-processes")
def test_all_processes_end_with_a_killed_engine_even_busy_ones() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", KILLED],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    pids = [int(pid) for pid in ran.stdout.split()]
    assert len(pids) == 2, ran.stderr
    assert eventually(lambda: not any(Path("/proc", str(pid)).exists() for pid in pids))


class SilentProcess:
    """A process that answers as it is told: the server that it is forked from, and its end."""

    def __init__(self) -> None:
        self._here, self.connection = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._here.setblocking(False)
        self.process = Process(self, 1, self._here)  # type: ignore[arg-type]
        self.following = Following(self.process, SMALL, {}, lambda: None)
        self.following.begin(1.0)
        self.say(grammar_process.GOES_ON + b"\x01" * 4)
        assert self.following.wait(10)
        worker.receive(self.connection, worker.QUESTION)

    def say(self, *answers: bytes) -> None:
        for answer in answers:
            self.connection.send(worker.packed(worker.ANSWER.pack(worker.DONE, 0), answer)[0])

    def was_killed(self, number: int) -> bool:
        return True  # as of a process that was never forked

    def order(self, kind: int, number: int) -> None:
        pass


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentProcess]:
    monkeypatch.setattr(_STEP_S, 0.1)
    silent = SilentProcess()
    yield silent
    silent.connection.close()
    silent.process.close()


@pytest.mark.threat("endless-grammars")
def test_a_process_that_says_no_more_is_not_waited_for_for_ever(silent: SilentProcess) -> None:
    grammar, other = silent.following(), silent.following()
    silent.say(grammar_process.GOES_ON)
    grammar.follow(7)
    assert not grammar.is_ready
    assert not wait_for_masks([grammar, other], 0.05)
    assert other.is_ready
    assert grammar.mask() == b"\x01" * 4  # anything: the next token is refused
    with pytest.raises(RequestError, match=r"^regex: too complex to follow any further"):
        grammar.follow(7)


def test_a_process_that_could_not_be_forked_is_asked_for_again_later(silent: SilentProcess) -> None:
    """The program says that it has no such process."""
    grammar = silent.following()
    silent.connection.close()
    with pytest.raises(OverloadedError, match="went away before it answered: try again"):
        grammar.follow(7)


def test_a_question_that_could_not_be_sent_leaves_no_descriptor(silent: SilentProcess) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    silent.connection.close()
    silent.process.ask(grammar_process.mask, bytes(2**20), time_limit_s=1.0)
    silent.process.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before - 2  # both ends


def test_the_mask_of_a_token_before_the_last_is_not_taken_for_the_next(
    silent: SilentProcess,
) -> None:
    grammar, state = silent.following(), grammar_process.GOES_ON
    silent.say(state)
    grammar.follow(7)  # its mask comes late
    grammar.tell(8)
    silent.say(b"\1" * 4, state, b"\2" * 4)
    grammar.follow(8)
    assert grammar.mask() == b"\2" * 4


def test_orders_that_a_busy_process_does_not_read_do_not_block(silent: SilentProcess) -> None:
    for grammar in [silent.following() for _ in range(5000)]:
        grammar.tell(3)
    orders = [grammar_process.OUTPUT.pack(number + 1, 3) for number in range(5000)]
    received: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                _, _, (_, order) = worker.receive(silent.connection, worker.QUESTION)
                received.append(order)

    silent.connection.setblocking(False)
    read()
    assert len(received) < 5000
    while len(received) < 5000:
        assert silent.process.next_answer(0.0) is None
        read()
    assert received == orders
