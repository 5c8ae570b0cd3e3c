"""Which version of the installed library a generated folder is written for.

A digest of its sources goes with the release: a server is told by it that what it has loaded is no
longer what is installed, and only models whose code has changed are loaded anew.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

import hf_triton
from generator.errors import TemplateError
from hf_triton.version import VERSION

_SHARED = ("runtime", "python_env")  # the packages that all tasks share
_FOLDER = Path(str(hf_triton.__file__)).parent


@lru_cache
def library_version(packages: tuple[str, ...]) -> str:
    """Such as ``0.1.0-1a2b3c4d5e6f``, for models that run these packages of hf_triton. Raises
    TemplateError where there is no such package.
    """
    digest = hashlib.sha256()
    for name in ("", *_SHARED, *sorted(packages)):
        digest.update(_digest(name))
    return f"{VERSION}-{digest.hexdigest()[:12]}"


@lru_cache
def _digest(package: str) -> bytes:
    """Over a package's modules, or over those of hf_triton itself."""
    digest = hashlib.sha256()
    folder = _FOLDER / package
    if not folder.is_dir():
        raise TemplateError(f"PACKAGES names {package!r}, which is no package of {_FOLDER}")
    for path in sorted(folder.rglob("*.py") if package else folder.glob("*.py")):
        digest.update(f"{path.relative_to(_FOLDER)}\0".encode() + path.read_bytes())
    return digest.digest()
