"""Single files out of PyPI's wheels: of installed ones, else of one that pip downloads, kept in the
user's cache. Installs nothing into this environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path, PurePosixPath

from perf.baselines.servers.environments import cache_folder, last_line

_DOWNLOAD_TIMEOUT_S = 900.0


class WheelError(Exception):
    """The file can't be had; why, in one line."""


def installed_file(distribution: str, pattern: str) -> Path | None:
    """A file of an installed package whose path in its wheel ends like ``pattern``."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        path = Path(str(file.locate())).resolve()
        if PurePosixPath(str(file)).match(pattern) and path.is_file():
            return path
    return None


def downloaded_file(requirement: str, pattern: str, name: str) -> Path:
    """The same out of a wheel that is downloaded, kept as ``name``. Raises WheelError."""
    kept = cache_folder() / "wheels" / requirement / name
    if kept.is_file():
        return kept
    print(f"hf-triton: downloading {requirement}, once, for {name}", file=sys.stderr)
    try:
        with tempfile.TemporaryDirectory(prefix="hf-triton-wheel-") as folder:
            _download(requirement, Path(folder))
            content = _member(Path(folder), pattern)
        kept.parent.mkdir(parents=True, exist_ok=True)
        fresh = kept.with_name(f".{name}.{os.getpid()}")
        fresh.write_bytes(content)
        fresh.chmod(0o755)
        fresh.replace(kept)
    except (OSError, subprocess.SubprocessError, zipfile.BadZipFile) as error:
        raise WheelError(f"{requirement} can't be downloaded: {last_line(error)}") from error
    return kept


def _download(requirement: str, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    subprocess.run(
        [*command, "--quiet", "--dest", str(folder), requirement],
        check=True,
        capture_output=True,
        text=True,
        timeout=_DOWNLOAD_TIMEOUT_S,
    )


def _member(folder: Path, pattern: str) -> bytes:
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if PurePosixPath(name).match(pattern):
                return archive.read(name)
    raise WheelError(f"{wheel.name} holds no {pattern}")
