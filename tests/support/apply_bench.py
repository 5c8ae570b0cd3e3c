"""A repository of echo models, a Triton that serves it, and ``hf-triton apply`` on both."""

from __future__ import annotations

import contextlib
import io
import os
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hf_triton.cli import main as cli
from hf_triton.cli.verbs.generate import generate
from hf_triton.tritonserver.http_api import ServerApi
from hf_triton.tritonserver.listen import Listen
from hf_triton.tritonserver.process import TritonServer
from hf_triton.tritonserver.state_file import ServerState, write_served, write_state
from tests.support.fake_control import FakeTriton, listening
from tests.support.own_tasks import use_tasks
from tests.support.triton import echo_templates, free_ports


@dataclass(frozen=True)
class Ran:
    """A command's exit code and output."""

    code: int
    out: str
    err: str


@dataclass
class Bench:
    """In the current folder: models.yaml, model_repository/, and the server."""

    api: ServerApi
    fake: FakeTriton | None

    repository = Path("model_repository")

    def say(self, models: str) -> None:
        """Writes models.yaml; nothing streams unless it says so."""
        body = textwrap.indent(textwrap.dedent(models), "  ")
        defaults = "{task: echo, model: nobody/echo, streaming: false}"
        Path("models.yaml").write_text(f"defaults: {defaults}\nmodels:\n{body}")

    def run(self, *arguments: str) -> Ran:
        """Runs hf-triton."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main(arguments)
        return Ran(code, out.getvalue(), err.getvalue())

    def apply(self, *arguments: str) -> Ran:
        """Runs hf-triton apply."""
        return self.run("apply", *arguments)

    def applied(self, models: str) -> Ran:
        """The models are served."""
        self.say(models)
        ran = self.apply()
        assert ran.code == 0, ran
        return ran

    def ready(self, name: str) -> set[int]:
        """The versions that answer."""
        return {
            int(entry.version)
            for entry in self.api.index()
            if entry.model == name and entry.state == "READY"
        }

    def options(self, name: str) -> str:
        """The model.json of the version that answers, as it lies on disk."""
        (version,) = self.ready(name)
        return (self.repository / name / str(version) / "model.json").read_text()

    def is_current(self) -> bool:
        """True if the disk is what models.yaml says."""
        return self.run("diff").code == 0


@contextlib.contextmanager
def bench(kind: str, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """``kind`` is ``fake`` or ``real``; two models are served at first, whole and streaming."""
    home = echo_templates(folder / "templates")
    use_tasks(home, patch.setattr)
    patch.chdir(folder)
    Bench.repository.mkdir()
    serving = _fake() if kind == "fake" else _real()
    with serving as found:
        found.say("- {name: a}\n- {name: s, streaming: true}\n")
        generate(Path("models.yaml"), Bench.repository)
        for name in ("a", "s_stream", "s"):
            assert found.api.load(name) is None
        write_served(Bench.repository, ["a", "s"])
        if found.fake:
            found.fake.events.clear()
        yield found


@contextlib.contextmanager
def _fake() -> Iterator[Bench]:
    with listening(FakeTriton(Bench.repository)) as fake:
        tell_state(fake.port, metrics_port=fake.port)
        yield Bench(ServerApi(Listen("127.0.0.1", fake.port)), fake)


@contextlib.contextmanager
def _real() -> Iterator[Bench]:
    listen = free_ports()
    with TritonServer(Bench.repository, listen) as server:
        tell_state(listen.http_port, listen.metrics_port, grpc_port=listen.grpc_port)
        yield Bench(server.api, None)


def tell_state(
    port: int, metrics_port: int, config: str = "models.yaml", grpc_port: int = 0
) -> None:
    """As ``serve`` does."""
    here = str(Path(config).absolute())
    repository = str(Bench.repository.absolute())
    listen = ("127.0.0.1", port, grpc_port, metrics_port)
    write_state(ServerState(*listen, pid=os.getpid(), config=here, repository=repository))
