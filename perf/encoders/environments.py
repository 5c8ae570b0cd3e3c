"""The peers' own Python environments, made on first use and kept in a folder outside the checkout.

Nothing is installed into the environment that runs this.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

READY = "hf-triton-perf-ready"  # holds what was installed; written last
UVICORN = ("fastapi==0.165.0", "uvicorn[standard]==0.54.0")
TORCH = ("torch==2.13.0",)  # first and by itself, so that MLServer's wishes don't change its build
MLSERVER = (
    "mlserver==1.7.1",
    "mlserver-huggingface==1.7.1",
    # What it asks for leaves pip a long search; these are what that ends with.
    "transformers==4.53.3",
    "optimum==1.27.0",
    "uvloop==0.21.0",  # its workers find no event loop with the next
)


class EnvironmentMissingError(Exception):
    """An environment that can't be made, with why in one line."""


@dataclass(frozen=True)
class Environment:
    """``steps`` are calls of pip; ``finish`` is given the environment's site-packages."""

    folder: Path
    steps: tuple[tuple[str, ...], ...]
    finish: Callable[[Path], None]

    def program(self, name: str) -> str:
        """The absolute path of one of its programs."""
        return str(self.folder.absolute() / "bin" / name)

    def ensure(self) -> None:
        """Makes it unless it is there. Raises ``EnvironmentMissingError``."""
        wanted = "\n".join(" ".join(step) for step in self.steps)
        marker = self.folder / READY
        if marker.is_file() and marker.read_text(encoding="utf-8") == wanted:
            return
        print(f"installing into {self.folder}, once", file=sys.stderr)
        try:
            self._make()
        except (OSError, subprocess.CalledProcessError) as error:
            raise EnvironmentMissingError(f"{self.folder}: {last_line(error)}") from error
        marker.write_text(wanted, encoding="utf-8")

    def _make(self) -> None:
        run_quietly([sys.executable, "-m", "venv", "--clear", str(self.folder)])
        for step in self.steps:
            run_quietly([self.program("python"), "-m", "pip", "install", *step])
        minor = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.finish(self.folder / "lib" / minor / "site-packages")


def cache_folder() -> Path:
    """Where environments are kept unless the command line says otherwise."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "hf-triton", "perf")


def uvicorn_environment(folder: Path) -> Environment:
    """FastAPI and uvicorn, beside the torch and the transformers of this environment."""
    return Environment(folder, (UVICORN,), see_our_packages)


def mlserver_environment(folder: Path) -> Environment:
    """MLServer with its Hugging Face runtime, all of its own."""
    return Environment(folder, (TORCH, MLSERVER), make_importable)


def see_our_packages(site_packages: Path) -> None:
    """What the environment does not have itself comes from the one that runs this."""
    ours = sysconfig.get_paths()["purelib"]
    (site_packages / "of-hf-triton.pth").write_text(ours + "\n", encoding="utf-8")


def make_importable(site_packages: Path) -> None:
    """MLServer's runtime imports a class that its transformers no longer has, and optimum a module
    that its torch has elsewhere.
    """
    patcher = site_packages / "optimum" / "exporters" / "onnx" / "model_patcher.py"
    text = patcher.read_text(encoding="utf-8")
    moved = "torch.onnx._internal.torchscript_exporter.symbolic_opset14"
    patcher.write_text(text.replace("torch.onnx.symbolic_opset14", moved), encoding="utf-8")
    pipelines = site_packages / "transformers" / "pipelines" / "__init__.py"
    with pipelines.open("a", encoding="utf-8") as file:
        file.write("\n\nclass Conversation:\n    pass\n")


def run_quietly(command: list[str]) -> None:
    """Raises ``CalledProcessError`` with what it printed."""
    subprocess.run(command, check=True, capture_output=True, text=True)


def last_line(error: Exception) -> str:
    """Of what a failed command printed as its error, or of the error itself."""
    printed = getattr(error, "stderr", None) or str(error)
    return str(printed).strip().splitlines()[-1]
