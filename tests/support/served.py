"""``hf-triton serve`` as a process of its own, with echo models: to be stopped and killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

from generator.python_modules import run_module
from hf_triton.tritonserver.listen import Listen
from tests.support.triton import Answer, echo_templates, eventually, free_ports, get, post


class Served:
    """The running command: what it has said so far, its exit code, the processes below it."""

    def __init__(
        self, process: subprocess.Popen[bytes], listen: Listen, out: BinaryIO, err: BinaryIO
    ) -> None:
        self.process, self.listen = process, listen
        self._files = {"out": out, "err": err}
        self._at_end: dict[str, str] = {}

    @property
    def out(self) -> str:
        """The lines on stdout."""
        return self._at_end["out"] if self._at_end else self._lines("out")

    @property
    def err(self) -> str:
        """The lines on stderr."""
        return self._at_end["err"] if self._at_end else self._lines("err")

    def _lines(self, name: str) -> str:
        has_ended = self.process.poll() is not None
        file = self._files[name].fileno()
        text = os.pread(file, os.fstat(file).st_size, 0)
        return (text if has_ended else text[: text.rfind(b"\n") + 1]).decode(errors="replace")

    def keep_lines(self) -> None:
        """Reads all that was said, before the files are closed."""
        self._at_end = {name: self._lines(name) for name in self._files}

    def wait_for(self, text: str) -> None:
        """Returns when ``text`` is on stderr or stdout."""
        eventually(lambda: text in self.err + self.out or self.process.poll() is not None, 120)
        assert text in self.err + self.out, f"{text!r} did not come:\n{self.err}\n{self.out}"

    def exit_code(self, timeout_s: float = 120.0) -> int:
        """Waits for its end; all its output is in ``out`` and ``err`` then."""
        return self.process.wait(timeout_s)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def generate(self, model: str, text: str) -> Answer:
        port = self.listen.http_port
        return post(f"http://127.0.0.1:{port}/v2/models/{model}/generate", {"text_input": text})

    def num_requests(self, model: str) -> float:
        """The number of a model's requests that have gone to its process."""
        text = get(f"http://127.0.0.1:{self.listen.metrics_port}/metrics").body
        lines = [line for line in text.splitlines() if line.startswith("nv_inference_exec_count{")]
        return sum(float(line.split()[-1]) for line in lines if f'"{model}"' in line)

    def server_pids(self) -> list[int]:
        """The guard, tritonserver and its stubs: all have the port on their command lines."""
        marks = (f"--http-port={self.listen.http_port}", f"_{self.listen.http_port}_")
        return [pid for pid, line in _command_lines() if any(mark in line for mark in marks)]

    def tritonserver_pid(self) -> int:
        mark = f"--http-port={self.listen.http_port}"
        lines = [one for one in _command_lines() if one[0] != self.process.pid]
        (found,) = [pid for pid, line in lines if mark in line and "guard.py" not in line]
        return found

    def stub_pid(self, model: str) -> int:
        return self.stub_pids(model)[0]

    def stub_pids(self, model: str, version: int = 1) -> list[int]:
        """Its Python processes."""
        marks = (f"/{model}/{version}/model.py", f"_{self.listen.http_port}_")
        return [pid for pid, line in _command_lines() if all(mark in line for mark in marks)]

    @contextlib.contextmanager
    def killed_at_birth(self) -> Iterator[None]:
        """Kills the next process that tritonserver starts because of the block, in its first
        moments, for which 24.10 waits for ever.
        """
        tritonserver = self.tritonserver_pid()
        known = _children(tritonserver)
        yield
        deadline = time.monotonic() + 60
        while not (begun := _children(tritonserver) - known) and time.monotonic() < deadline:
            pass
        for pid in begun:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                os.kill(pid, signal.SIGKILL)

    def leaves_nothing(self) -> bool:
        """True if all processes and all shared memory are gone, or go within seconds."""
        regions = Path("/dev/shm")
        return eventually(
            lambda: (
                not self.server_pids()
                and not list(regions.glob(f"hf_triton_*_{self.listen.http_port}_*"))
            )
        )


@contextlib.contextmanager
def serve(
    folder: Path,
    models: str,
    *arguments: str,
    listen: Listen | None = None,
    environment: Mapping[str, str] | None = None,
    settings: str = "{}",
) -> Iterator[Served]:
    """Runs ``hf-triton serve`` on echo ``models``, in ``folder``; kills what is left of it.

    They don't stream unless they say so. ``settings`` are those of the server.
    """
    config = folder / "models.yaml"
    body = textwrap.indent(textwrap.dedent(models), "  ")
    config.write_text(
        f"server: {settings}\n"
        f"defaults: {{task: echo, model: nobody/echo, streaming: false}}\nmodels:\n{body}"
    )
    templates = folder / "templates"
    if not templates.exists():
        echo_templates(templates)
    command = ("tests.support.echo_cli", str(templates))
    with started(folder, command, arguments, listen or free_ports(), environment or {}) as served:
        yield served


@contextlib.contextmanager
def started(
    folder: Path,
    command: Sequence[str],
    arguments: Sequence[str],
    listen: Listen,
    environment: Mapping[str, str],
) -> Iterator[Served]:
    """Runs a module's ``serve`` with the models.yaml in ``folder``; kills what is left of it."""
    ports = [f"{flag}={port}" for flag, port in listen.ports().items() if port]
    files = ("--config=models.yaml", "--repository=repository")
    with TemporaryFile() as out, TemporaryFile() as err:
        process = subprocess.Popen(
            run_module(*command, "serve", *ports, *files, *arguments),
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
        served = Served(process, listen, out, err)
        try:
            yield served
        finally:
            process.kill()
            process.wait()
            served.leaves_nothing()
            for pid in served.server_pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            served.keep_lines()


def _children(pid: int) -> set[int]:
    found: set[int] = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            found |= {int(child) for child in (thread / "children").read_text().split()}
    return found


def _command_lines() -> list[tuple[int, str]]:
    lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if "echo_cli" not in text:
                lines.append((int(folder.name), text))
    return sorted(lines)
