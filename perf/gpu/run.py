"""Runs jobs, each a process of its own: a CUDA error ends a process's device.

What they print is kept whole, and what matters of it is printed last. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from perf import machine
from perf.gpu.jobs import PROVE, Job
from perf.orphans import end, ends_with_us, our_environment

ROOT = Path(__file__).parents[2]
CPU = "cpu"
_AT_ONCE = 10  # of what is to be right; what is timed runs alone
_LEAST_S = 10.0  # with less left no job is begun
_GRACE_S = 3.0
_MACHINE_LIMIT_S = 180.0  # the first import of torch from a cold disk
_DONE = "done"
_BAD = ("BAD", "LOST", "SLOW")
_TOLD = re.compile(r"agree, |runner |log: |Error|/s |share|us |  host|ERROR SUMMARY")
_MOST_TOLD, _MOST_BAD = {PROVE: 6}, 12
_LOOK = """\
import sys, numpy, torch, transformers
import hf_triton.text_generation.in_flight.engine, hf_triton.encoder.runners.runner
asked, cuda = sys.argv[1], torch.cuda.is_available()
device = ('cuda:0' if asked == 'any' else asked) if cuda else 'cpu'
about = 'no GPU'
if device != 'cpu':
    one = torch.cuda.get_device_properties(device)
    about = f'{one.name}, {one.multi_processor_count} multiprocessors'
    about += f', {one.total_memory / 2**30:.1f} GiB'
versions = [f'{one.__name__} {one.__version__}' for one in (torch, transformers, numpy)]
about = [about, f'python {sys.version.split()[0]}', *versions, f'cuda {torch.version.cuda}']
print(device, ', '.join(about), sep='\\n')
"""


@dataclass
class Run:
    """One command's jobs; ``folder`` keeps what is done of them and may travel with a checkout."""

    command: str
    folder: Path
    budget_s: float
    device: str = "any"
    at_once: int = 0
    again: bool = False
    packages: Path | None = None
    ended: dict[str, str] = field(default_factory=dict)
    printed: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._begun_s = time.monotonic()
        self._code = machine.code()
        self.at_once = self.at_once or (_AT_ONCE if self.command == PROVE else 1)

    @property
    def left_s(self) -> float:
        """Of the budget."""
        return self.budget_s - (time.monotonic() - self._begun_s)

    def look(self) -> str:
        """Finds the device; returns a line on it, or raises ValueError with what is missing."""
        words = [sys.executable, "-c", _LOOK, self.device]
        found = subprocess.run(
            words,
            cwd=ROOT,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=_MACHINE_LIMIT_S,
        )
        if found.returncode:
            last = (found.stderr.strip().splitlines() or ["nothing"])[-1]
            raise ValueError(
                f"the engines can't be imported here: {last}; a package can come as a wheel: "
                "--wheels DIR"
            )
        device, about = found.stdout.strip().splitlines()[-2:]
        if device == CPU and self.device not in ("any", CPU):
            raise ValueError(f"--device: got {self.device}, but torch sees no GPU here")
        self.device = device
        return f"{device}: {about}"

    def run(self, jobs: Sequence[Job]) -> bool:
        """Runs them until the budget is spent; whether all ended well."""
        self.folder.mkdir(parents=True, exist_ok=True)
        at_once = min(self.at_once, machine.num_cores()) if self.device == CPU else self.at_once
        self._threads = str(max(1, machine.num_cores() // at_once))
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(self._run_or_keep, jobs))
        self._tell()
        return all(how.startswith((_DONE, "kept", "skipped")) for how in self.ended.values())

    def _run_or_keep(self, job: Job) -> None:
        path = self.folder / f"{job.name}.json"
        if job.needs_gpu and self.device == CPU:
            self.ended[job.name] = "skipped: it needs a GPU"
        elif (limit_s := min(job.limit_s, self.left_s)) < _LEAST_S:
            self.ended[job.name] = "not begun: the budget is spent"
        elif not self.again and path.exists() and self._is_same(json.loads(path.read_text())):
            self.ended[job.name] = "kept, of an earlier run"
        else:
            how = self._run(job, limit_s)
            self.ended[job.name] = how
            about = {"ended": how, "code": self._code, "device": self.device}
            path.write_text(json.dumps(about) + "\n")
            print(f"[{time.monotonic() - self._begun_s:.0f} s] {job.name}: {how}", flush=True)

    def _is_same(self, kept: dict[str, str]) -> bool:
        same = (kept.get("code"), kept.get("device")) == (self._code, self.device)
        return same and kept.get("ended", "").startswith(_DONE)

    def command_of(self, job: Job) -> list[str]:
        """The job's process."""
        module, *words = job.words
        command = [*job.under, sys.executable, "-m", f"perf.gpu.{module}", *words]
        return [*command, "--device", self.device]

    def _run(self, job: Job, limit_s: float) -> str:
        """How it ended; what it printed is in a log of its name."""
        # The allocator of torch lets no access be out of bounds within its blocks.
        more = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if job.under else {}
        begun_s, lines = time.monotonic(), self.printed.setdefault(job.name, [])
        try:
            process = subprocess.Popen(
                self.command_of(job),
                cwd=ROOT,
                env={**self._environment(), "OMP_NUM_THREADS": self._threads, **more},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
                preexec_fn=ends_with_us(signal.SIGTERM),
            )
        except OSError as error:
            return f"failed: {error}"
        timer = threading.Timer(limit_s, end, (process, _GRACE_S))
        timer.start()
        assert process.stdout is not None
        with process.stdout, (self.folder / f"{job.name}.log").open("w", encoding="utf-8") as log:
            for line in process.stdout:
                lines.append(line.rstrip())
                log.write(line)
                log.flush()
        code = process.wait()
        timer.cancel()
        took_s = time.monotonic() - begun_s
        is_cut = code != 0 and took_s >= limit_s
        how = _DONE if code == 0 else f"exit code {code}"
        return f"{f'cut off at {limit_s:.0f} s' if is_cut else how}, {took_s:.0f} s"

    def _environment(self) -> dict[str, str]:
        """What ``--wheels`` brought, then the checkout's modules; nothing is fetched."""
        found = our_environment()
        brought = [str(self.packages)] if self.packages else []
        paths = [*brought, found["PYTHONPATH"]]
        return {
            **found,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONUNBUFFERED": "1",
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }

    def _tell(self) -> None:
        """What matters, the bad last, so that an output that is cut at its beginning has it."""
        print(f"---- what matters; all of it is in {self.folder}")
        most = _MOST_TOLD.get(self.command, 60)
        for name, lines in self.printed.items():
            told = [one for one in lines if _TOLD.search(one) and not one.startswith(_BAD)]
            print("".join(f"{name}: {one[:230]}\n" for one in told[-most:]), end="")
        for name, lines in self.printed.items():
            bad = [one for one in lines if one.startswith(_BAD)][:_MOST_BAD]
            print("".join(f"{name}: {one[:300]}\n" for one in bad), end="")
        for name, how in self.ended.items():
            if not how.startswith((_DONE, "kept")):
                last = [one for one in self.printed.get(name, []) if one.strip()][-2:]
                print(f"!! {name}: {how}{': ' * bool(last)}{' | '.join(last)[:400]}")
        well = sum(how.startswith((_DONE, "kept")) for how in self.ended.values())
        took_s = time.monotonic() - self._begun_s
        print(f"{well} of {len(self.ended)} jobs ended well, {took_s:.0f} s", flush=True)
