"""Runs jobs, each a process of its own: a CUDA error ends a process's device.

They are forked from this one, which has imported what all need, and has no GPU. What they print is
kept whole; what matters of it is told last, the bad at the end.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generator.errors import EXIT_INPUT, EXIT_INTERRUPTED, EXIT_OK
from perf import machine
from perf.lab.gpu.jobs import JOBS, PROVE, Job
from perf.orphans import ends_with_us, our_environment

ROOT = Path(__file__).parents[3]
CPU = "cpu"
_AT_ONCE = 10  # of what is to be right; what is timed runs alone
_LEAST_S = 10.0  # with less left no job is begun
_GRACE_S, _LOOK_S = 3.0, 0.05
_DONE, _KEPT = "done", "kept, of an earlier run"
_WELL = (_DONE, _KEPT)
_BAD = ("BAD", "LOST", "SLOW")
_TOLD = re.compile(r"agree, |not run by |log: |Error|/s |share|us |  host|ERROR SUMMARY")
_MOST_TOLD, _MOST_BAD = {PROVE: 6}, 12


def environment(packages: Path | None = None) -> dict[str, str]:
    """What ``--wheels`` brought, then the checkout's modules; nothing is fetched."""
    found = our_environment()
    brought = [str(packages)] if packages else []
    paths = [*brought, found["PYTHONPATH"]]
    return {
        **found,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        # A process that asked CUDA itself whether there is a GPU can't be forked any more.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }


@dataclass
class _Running:
    job: Job
    begun_s: float
    limit_s: float
    num_signals: int = 0


class Run:
    """One command's jobs; ``folder`` keeps what is done of them and may travel with a checkout."""

    def __init__(self, command: str, folder: Path, budget_s: float, device: str) -> None:
        self.folder, self.budget_s, self.device = folder, budget_s, device
        self.ended: dict[str, str] = {}
        self._begun_s, self._code = time.monotonic(), machine.code()
        self._most_told = _MOST_TOLD.get(command, 60)
        at_once = _AT_ONCE if command == PROVE else 1
        self._at_once = min(at_once, machine.num_cores()) if device == CPU else at_once
        self._running: dict[int, _Running] = {}

    @property
    def took_s(self) -> float:
        return time.monotonic() - self._begun_s

    def run(self, jobs: Sequence[Job]) -> bool:
        """Runs them until the budget is spent; whether all ended well."""
        self.folder.mkdir(parents=True, exist_ok=True)
        waiting = list(jobs)
        try:
            while waiting or self._running:
                while waiting and len(self._running) < self._at_once:
                    self._begin(waiting.pop(0))
                for pid, one in [*self._running.items()]:
                    self._look_after(pid, one)
                time.sleep(_LOOK_S)
        finally:
            for pid in self._running:
                os.kill(pid, signal.SIGTERM)
            for pid in self._running:
                os.waitpid(pid, 0)
        self._tell()
        return all(how.startswith((*_WELL, "skipped")) for how in self.ended.values())

    def _begin(self, job: Job) -> None:
        limit_s = min(job.limit_s, self.budget_s - self.took_s)
        if job.needs_gpu and self.device == CPU:
            self.ended[job.name] = "skipped: it needs a GPU"
        elif self._is_done(job):
            self.ended[job.name] = _KEPT
        elif limit_s < _LEAST_S:
            self.ended[job.name] = "not begun: the budget is spent"
        else:
            self._running[self._forked(job)] = _Running(job, time.monotonic(), limit_s)

    def _path(self, name: str, ending: str) -> Path:
        return self.folder / f"{name.replace(' ', '-')}.{ending}"

    def _is_done(self, job: Job) -> bool:
        try:
            kept = json.loads(self._path(job.name, "json").read_text())
        except OSError:
            return False
        same = (kept["code"], kept["device"]) == (self._code, self.device)
        return same and bool(kept["ended"].startswith(_DONE))

    def _forked(self, job: Job) -> int:
        sys.stdout.flush()
        if pid := os.fork():
            return pid
        code: Any = EXIT_INPUT
        try:
            code = self._in_child(job)
        except SystemExit as ended:
            code = ended.code
        except BaseException:  # noqa: BLE001
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)  # threads that don't end, of transformers' among them, hold nothing up

    def _in_child(self, job: Job) -> int:
        os.setsid()
        if end := ends_with_us(signal.SIGTERM):
            end()
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        for number, path in ((0, os.devnull), (1, self._path(job.name, "log"))):
            os.dup2(os.open(path, flags if number else os.O_RDONLY), number)
        os.dup2(1, 2)
        num_threads = max(1, machine.num_cores() // self._at_once)
        os.environ["OMP_NUM_THREADS"] = str(num_threads)
        import torch

        is_bad_fork = self.device != CPU and torch.cuda._is_in_bad_fork()  # noqa: SLF001
        if not job.under and not is_bad_fork:
            from perf.lab.gpu.told import work

            torch.set_num_threads(num_threads)
            return work(job, self.device)
        if job.under:
            # The allocator of torch lets no access be out of bounds within its blocks.
            os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        words = [*job.under, sys.executable, "-m", "perf.lab.gpu.told", job.name, self.device]
        return os.execvp(words[0], words)

    def _look_after(self, pid: int, one: _Running) -> None:
        """Notes how it ended, or ends it, gently at first, once its time is over."""
        over_s = time.monotonic() - one.begun_s - one.limit_s
        if over_s >= one.num_signals * _GRACE_S and one.num_signals < 2:
            end, number = ((os.kill, signal.SIGTERM), (os.killpg, signal.SIGKILL))[one.num_signals]
            one.num_signals += 1
            end(pid, number)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if not ended:
            return
        del self._running[pid]
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # whatever it left
        code = os.waitstatus_to_exitcode(status)
        how = _DONE if code == 0 else f"exit code {code}"
        how = f"cut off at {one.limit_s:.0f} s" if code and one.num_signals else how
        how = f"{how}, {one.limit_s + over_s:.0f} s"
        self.ended[one.job.name] = how
        about = {"ended": how, "code": self._code, "device": self.device}
        self._path(one.job.name, "json").write_text(json.dumps(about) + "\n")
        print(f"[{self.took_s:.0f} s] {one.job.name}: {how}", flush=True)

    def _tell(self) -> None:
        """What matters, the bad last, so that an output that is cut at its beginning has it."""
        print(f"---- what matters; all of it is in {self.folder}")
        printed = {name: [*self._lines(name)] for name in self.ended}
        for name, lines in printed.items():
            told = [one for one in lines if _TOLD.search(one) and not one.startswith(_BAD)]
            print("".join(f"{name}: {one[:230]}\n" for one in told[-self._most_told :]), end="")
        for name, lines in printed.items():
            bad = [one for one in lines if one.startswith(_BAD)][:_MOST_BAD]
            print("".join(f"{name}: {one[:300]}\n" for one in bad), end="")
        for name, how in self.ended.items():
            if not how.startswith(_WELL):
                print(f"!! {' | '.join([f'{name}: {how}', *printed[name][-2:]])[:500]}")
        well = sum(how.startswith(_WELL) for how in self.ended.values())
        print(f"{well} of {len(self.ended)} jobs ended well, {self.took_s:.0f} s", flush=True)

    def _lines(self, name: str) -> Iterator[str]:
        with suppress(FileNotFoundError):
            text = self._path(name, "log").read_text(encoding="utf-8", errors="replace")
            yield from (line for line in text.splitlines() if line.strip())


def main(argv: list[str]) -> int:
    """Runs what the verb was asked for; returns the exit code."""
    command, folder, budget_s, device, pattern = argv
    begun_s = time.monotonic()
    try:
        about, device = _look(device)
    except Exception as error:  # noqa: BLE001
        # Whatever a package raises that is too old, too new or not there.
        print(f"hf-triton perf gpu: {error}", file=sys.stderr)
        return EXIT_INPUT
    print(about, flush=True)
    run = Run(command, Path(folder), float(budget_s) - (time.monotonic() - begun_s), device)
    jobs = [job for job in JOBS[command] if re.search(pattern, job.name)]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # jobs end what they started, too
    try:
        return EXIT_OK if run.run(jobs) else EXIT_INPUT
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _look(asked: str) -> tuple[str, str]:
    """Imports what jobs need: a line on it and the machine, and the device. Raises ValueError with
    what is missing, and Exception.
    """
    try:
        import torch

        import perf.lab.gpu.told  # noqa: F401
    except Exception as error:
        raise ValueError(
            f"the engines can't be imported here: {type(error).__name__}: {error}; a package can "
            "come as a wheel: --wheels DIR"
        ) from error
    has_gpu = asked != CPU and torch.cuda.is_available()
    device = ("cuda:0" if asked == "any" else asked) if has_gpu else CPU
    if device == CPU and asked not in ("any", CPU):
        raise ValueError(f"--device: got {asked}, but torch sees no GPU here")
    packages = [
        f"{one} {sys.modules[one].__version__}" for one in ("torch", "transformers", "numpy")
    ]
    about = ["no GPU"] if device == CPU else _gpus()
    return f"{device}: {', '.join([*about, f'python {sys.version.split()[0]}', *packages])}", device


def _gpus() -> list[str]:
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True).stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
