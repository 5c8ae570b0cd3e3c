"""Chooses the files of a Hub repository that a model needs: one rule for server and `hf-triton
fetch`. And the Hub token: read from the environment only (``HF_TOKEN``, or ``PRIVATE_REPO_TOKEN``
as NVIDIA's tutorial names it), and kept out of logs and errors. Standard library only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

from ..errors import LoadError, reason

_OTHER_FRAMEWORKS = (
    *("*.h5", "*.msgpack", "*.onnx", "*.onnx_data", "*.gguf", "*.tflite", "*.mlmodel", "*.ot"),
    *("onnx/*", "openvino/*", "coreml/*", "original/*", "consolidated*"),
    *("*.pdf", "*.png", "*.jpg", "*.mp4"),
)
# Loading a pickle can run code that its author put there.
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle", "*.joblib")
# As PEFT saves an adapter (peft/utils/constants.py).
ADAPTER_CONFIG = "adapter_config.json"
_ADAPTER_WEIGHTS, _ADAPTER_PICKLE = "adapter_model.safetensors", "adapter_model.bin"
ADAPTER_FILES = (ADAPTER_CONFIG, _ADAPTER_WEIGHTS, _ADAPTER_PICKLE)
# Serving does not read them.
_TRAINING_FILES = ("training_args*", "optimizer*", "scheduler*", "rng_state*", "*.pkl", "*.joblib")
TOKEN_VARIABLES = ("HF_TOKEN", "PRIVATE_REPO_TOKEN")
_MOST_NAMED = 20
_CONFIG = "config.json"
_MODULES = "modules.json"  # of sentence-transformers: names the folder that has config.json


class NotServableError(ValueError):
    """The repository has no weights that may be loaded; the text says what to set."""


def choose_model_files(names: Iterable[str], allow_pickle: bool) -> list[str]:
    """The files that a model needs of a repository with the files ``names``, sorted.

    Weights are safetensors. A folder's pickles are taken where it has no safetensors, and only with
    ``allow_pickle``: in the root, and in modules such as ``2_Dense/`` of sentence-transformers.
    Raises NotServableError: there are no weights, or only pickles without ``allow_pickle``.
    """
    names = list(names)
    kept = [name for name in names if not _matches(name, _OTHER_FRAMEWORKS)]
    plain = [name for name in kept if not _matches(name, _PICKLES)]
    pickles = needed_pickles(kept)
    if pickles and not allow_pickle:
        more = f" and {len(pickles) - 1} more" if len(pickles) > 1 else ""
        raise _only_pickles(f"pickles ({pickles[0]}{more})")
    if not pickles and not any(name.endswith(".safetensors") for name in plain):
        missing = "has no weights to serve: neither *.safetensors nor pytorch_model.bin"
        raise NotServableError(other_kind(names) or missing)
    if _CONFIG not in plain and (kind := other_kind(names)):
        raise NotServableError(kind)
    return sorted(plain + pickles)


def has_config(names: Collection[str], config: str = _CONFIG) -> bool:
    """True if there is this file, or one that says which folder has it."""
    return config in names or (
        config == _CONFIG and _MODULES in names and other_kind(names) is None
    )


def other_kind(names: Iterable[str]) -> str | None:
    """Describes a repository without a model, and what to do with it; None where unknown."""
    known = sorted(names)
    if ADAPTER_CONFIG in known:
        return (
            f"is an adapter ({ADAPTER_CONFIG}), not a whole model: set model to the one that it "
            "was made for, and name it under adapters"
        )
    gguf = [name for name in known if name.endswith(".gguf")]
    if gguf:
        return (
            f"has weights only as GGUF: choose a file with gguf_file: {gguf[0]}, or in a local "
            f"folder with model: FOLDER/{gguf[0]}"
        )
    return None


def choose_gguf_file(names: Iterable[str], gguf_file: str) -> list[str]:
    """The one file that is loaded. Raises NotServableError where it is not among ``names``."""
    known = sorted(name for name in names if name.endswith(".gguf"))
    if gguf_file not in known:
        has = f"its GGUF files are {', '.join(known[:_MOST_NAMED])}" if known else "none is GGUF"
        raise NotServableError(f"has no file {gguf_file}: {has}")
    return [gguf_file]


def choose_adapter_files(names: Iterable[str], allow_pickle: bool) -> list[str]:
    """The files that an adapter, as PEFT saves it, needs of a repository with the files ``names``.
    Raises NotServableError: it holds none, or only as a pickle without ``allow_pickle``.
    """
    known = set(names)
    if ADAPTER_CONFIG not in known:
        raise NotServableError(f"is not an adapter of PEFT: it has no {ADAPTER_CONFIG}")
    if _ADAPTER_WEIGHTS in known:
        return [ADAPTER_CONFIG, _ADAPTER_WEIGHTS]
    if _ADAPTER_PICKLE not in known:
        raise NotServableError(f"has no weights: neither {_ADAPTER_WEIGHTS} nor {_ADAPTER_PICKLE}")
    if not allow_pickle:
        raise _only_pickles(f"a pickle ({_ADAPTER_PICKLE})")
    return [_ADAPTER_PICKLE, ADAPTER_CONFIG]


def _only_pickles(found: str) -> NotServableError:
    return NotServableError(
        f"has weights only as {found}, and loading one can run code of its author: set "
        "allow_pickle: true to allow it, or a revision that has safetensors"
    )


def needed_pickles(names: Iterable[str]) -> list[str]:
    """The pickles of weights in folders that have no safetensors, sorted."""
    known = list(names)
    safe = {_folder(name) for name in known if name.endswith(".safetensors")}
    return sorted(
        name
        for name in known
        if _matches(name, _PICKLES)
        and not _matches(name.rpartition("/")[2], _TRAINING_FILES)
        and _folder(name) not in safe
        and (not _folder(name) or name[0].isdigit())
    )


def is_stored(source: str) -> bool:
    """True if a model's source is an object store's address."""
    return "://" in source


def is_safe_path(name: str) -> bool:
    """True if a relative path stays inside its folder: no ``..``, not absolute."""
    parts = name.split("/")
    return not ({"", ".", ".."} & set(parts)) and "\\" not in name and "\0" not in name


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class UnusableTokenError(LoadError):
    """The environment variable holds text that can't be a token."""


def hub_token() -> str | bool:
    """The environment's token, or False: with None huggingface_hub would look for one on disk.

    Space around it is dropped: a Kubernetes Secret made from a file often ends with a line end.
    Raises UnusableTokenError: it can't be sent in a header, and the error about that would quote
    it.
    """
    for name in TOKEN_VARIABLES:
        token = os.environ.get(name, "").strip()
        if token and not re.fullmatch(r"[!-~]+", token):
            raise UnusableTokenError(
                f"{name} has spaces, line ends or characters that no token has: set it again"
            )
        if token:
            return token
    return False


def error_line(error: BaseException) -> str:
    """An error's type and text, without any token or password that the text may quote."""
    text = str(error) or type(error).__name__
    for name in TOKEN_VARIABLES:
        token = os.environ.get(name, "").strip()
        if token:
            text = text.replace(token, f"${name}")
    text = re.sub(r"://[^/\s]+@", "://***@", text)  # user names and passwords of URLs
    # Cut to length last: a token that was cut in half would not be found.
    return f"{type(error).__name__}: {reason(LoadError(text))}"
