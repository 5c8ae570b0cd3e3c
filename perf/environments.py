"""The peers' own Python environments, made on first use and kept in a folder outside the checkout.

An environment is made again when what it is made of changes, or when its interpreter has gone.
Nothing is installed into the environment that runs this.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hf_triton.serving.python_env.pip import InstallError, install, run_quietly

READY = "hf-triton-perf-ready"  # holds the hash of what was installed; written last
RESERVE_GIB = 1.0  # of the disk, left to others
_MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"


class EnvironmentMissingError(Exception):
    """An environment that can't be made, with why in one line."""


Show = Callable[[str], object]  # is told what is being installed


@dataclass(frozen=True)
class Environment:
    """``steps`` are what pip is given, call by call; ``finish`` is called when they are through."""

    folder: Path
    steps: tuple[tuple[str, ...], ...]
    finish: Callable[[Environment, Show], None]
    disk_gib: float = field(default=0.1, compare=False)  # what it takes, roughly

    def program(self, name: str) -> str:
        """The absolute path of one of its programs."""
        return str(self.folder.absolute() / "bin" / name)

    @property
    def site_packages(self) -> Path:
        """Where its packages lie."""
        return self.folder / "lib" / f"python{_MINOR}" / "site-packages"

    @property
    def is_there(self) -> bool:
        """Whether it is complete, made of what it should be made of, and its interpreter runs."""
        try:
            if (self.folder / READY).read_text(encoding="utf-8") != self._made_of():
                return False
            run_quietly([self.program("python"), "-c", "pass"])
        except (OSError, subprocess.CalledProcessError):
            return False
        return True

    def _made_of(self) -> str:
        """The interpreter's version and what pip is given, after a hash of these."""
        steps = (" ".join(step) for step in self.steps)
        made_of = "\n".join([f"python {_MINOR}", *steps, self.finish.__name__])
        return f"{hashlib.sha256(made_of.encode()).hexdigest()}\n{made_of}\n"

    def ensure(self, show: Show = lambda _: None) -> None:
        """Makes it unless it is there, one process at a time. Raises
        ``EnvironmentMissingError``.
        """
        if self.is_there:
            return
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            with (self.folder.parent / f".{self.folder.name}.lock").open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if not self.is_there:  # another process may have made it meanwhile
                    self._check_place()
                    self._make(show)
        except (OSError, InstallError, subprocess.CalledProcessError) as error:
            raise EnvironmentMissingError(f"{self.folder}: {last_line(error)}") from error

    def _check_place(self) -> None:
        """Raises ``OSError`` where there is no room, or the folder is somebody's own."""
        if self.folder.is_dir() and any(self.folder.iterdir()):
            if not (self.folder / "pyvenv.cfg").is_file():
                raise FileExistsError("not a Python environment, and not empty; name another one")
            shutil.rmtree(self.folder)
        needed, free = self.disk_gib + RESERVE_GIB, shutil.disk_usage(self.folder.parent).free
        if free < needed * 2**30:
            raise OSError(f"needs {needed:.1f} GiB of disk, {free / 2**30:.1f} GiB are free")

    def _make(self, show: Show) -> None:
        try:
            pip = [] if self.steps else ["--without-pip"]  # which takes longest
            run_quietly([sys.executable, "-I", "-m", "venv", *pip, str(self.folder)])
            for step in self.steps:
                install(self.program("python"), step, show)
            self.finish(self, show)
        except Exception:
            shutil.rmtree(self.folder, ignore_errors=True)  # half of gigabytes is of no use
            raise
        (self.folder / READY).write_text(self._made_of(), encoding="utf-8")


def cache_folder() -> Path:
    """Where environments are kept unless the command line says otherwise."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "hf-triton", "perf")


def see_our_packages(environment: Environment, _: Show) -> None:
    """What the environment does not have itself comes from the one that runs this."""
    ours = sysconfig.get_paths()["purelib"]
    (environment.site_packages / "of-hf-triton.pth").write_text(ours + "\n", encoding="utf-8")


def last_line(error: Exception) -> str:
    """The last line that a failed command printed as its error, or of the error itself."""
    printed = getattr(error, "stderr", None) or str(error)
    return str(printed).strip().splitlines()[-1]
