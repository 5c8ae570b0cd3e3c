"""Gets a model's files into its cache and loads them, with one readable line where that fails.

A Hub model is cached in the model's folder of the repository; once it is complete there, nothing
goes over the network. Tokens come from the environment alone (``HF_TOKEN``, or
``PRIVATE_REPO_TOKEN`` as NVIDIA's tutorial names it) and never reach a log or an error.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .device import Placement
from .errors import LoadError, reason
from .log import info
from .served_model import ServedModel

_TOKEN_VARIABLES = ("HF_TOKEN", "PRIVATE_REPO_TOKEN")
_OTHER_FRAMEWORKS = [
    *(
        "*.h5",
        "*.msgpack",
        "*.onnx",
        "*.onnx_data",
        "*.gguf",
        "*.tflite",
        "*.mlmodel",
        "*.ot",
        "*.pdf",
    ),
    *("onnx/*", "openvino/*", "coreml/*", "original/*", "consolidated*", "*.png", "*.jpg", "*.mp4"),
]
# But 2_Dense/pytorch_model.bin and its like, which sentence-transformers' modules may have alone.
_PICKLES = ["[!0-9]*.bin", "*.pt", "*.pth", "*.ckpt"]


def model_files(served: ServedModel) -> Path:
    """The folder with the model's files: the local path, or the cache's snapshot, downloaded where
    it is not complete.

    Raises:
        LoadError: not there, not allowed, or not reachable.
    """
    if served.local:
        if not (served.local_path / "config.json").is_file():
            raise LoadError(f"local model: no config.json in {served.local_path}")
        return served.local_path
    return _cached_snapshot(served) or _download(served)


def load_config(served: ServedModel, files: Path) -> Any:
    """The model's transformers configuration."""
    from transformers import AutoConfig

    return _load(served, AutoConfig, files)


def load_tokenizer(served: ServedModel, files: Path) -> Any:
    """The model's tokenizer."""
    from transformers import AutoTokenizer

    return _load(served, AutoTokenizer, files, part="its tokenizer: ")


def load_model(
    served: ServedModel, files: Path, auto_class: Any, config: Any, placement: Placement
) -> Any:
    """The model in evaluation mode, in its dtype, on its device or spread by ``device_map``."""
    return _load_model(served, files, auto_class, config, placement)[0]


def load_whole_model(
    served: ServedModel, files: Path, auto_class: Any, config: Any, placement: Placement
) -> Any:
    """The same, of a model whose every layer has its weights among the files.

    Transformers makes up what is missing, with a warning: a classifier loaded from a checkpoint
    without one would answer at random. A pooler may be missing, as where only a language model
    was saved: what needs it has a head of its own that is missing then too.

    Raises:
        LoadError: weights are missing.
    """
    model, missing = _load_model(served, files, auto_class, config, placement)
    names = sorted(name for name in missing if "pooler." not in name)
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise LoadError(
            f"{served.source} has no weights for {names[0]}{more}: it is no model for {served.task}"
        )
    return model


def _load_model(
    served: ServedModel, files: Path, auto_class: Any, config: Any, placement: Placement
) -> tuple[Any, set[str]]:
    """The model, and the names of its weights that are not among the files."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # a bar in a server's log is a wall of lines
    device_map = None if placement.device_map == {"": "cpu"} else placement.device_map
    options = {"config": config, "dtype": resolve_dtype(served.dtype, config, placement.device)}
    model, report = _load(
        served, auto_class, files, device_map=device_map, output_loading_info=True, **options
    )
    return model.eval(), set(report["missing_keys"])


def load_weightless(served: ServedModel, auto_class: Any, config: Any) -> Any:
    """The model's modules without numbers in them: enough to ask what it takes.

    Raises:
        LoadError: as ``load_model``.
    """
    import torch

    try:
        with torch.device("meta"):
            return auto_class.from_config(config, trust_remote_code=served.trust_remote_code)
    except Exception as error:
        # Transformers raises many kinds; the operator gets one line for any of them.
        raise LoadError(f"{served.source}: {_line(error)}") from error


def resolve_dtype(dtype: str, config: Any, device: str) -> Any:
    """The torch dtype to load in. ``auto`` is the checkpoint's, but float32 for float16 on a CPU,
    which lacks it.
    """
    import torch

    if dtype != "auto":
        return getattr(torch, dtype)
    stored = getattr(config.get_text_config(), "dtype", None) or getattr(config, "dtype", None)
    if isinstance(stored, str):
        stored = getattr(torch, stored, None)
    if stored is None:
        return "auto"
    return torch.float32 if device == "cpu" and stored == torch.float16 else stored


def _cached_snapshot(served: ServedModel) -> Path | None:
    """The snapshot in the cache if it is complete."""
    for ignored in (_OTHER_FRAMEWORKS + _PICKLES, _OTHER_FRAMEWORKS):
        try:
            files = _snapshot(served, ignored, local_files_only=True)
        except OSError:  # huggingface_hub's errors for what is missing or incomplete are OSErrors
            return None
        if any(files.glob("*.safetensors")):
            return files
    return files if any(path for pattern in _PICKLES for path in files.glob(pattern)) else None


def _download(served: ServedModel) -> Path:
    from huggingface_hub import HfApi
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    info(f"{served.name}: downloading {served.source}")
    try:
        listed = HfApi(token=_token()).model_info(served.model, revision=served.revision)
        names = [file.rfilename for file in listed.siblings or []]
        has_safetensors = any(name.endswith(".safetensors") for name in names)
        return _snapshot(served, _OTHER_FRAMEWORKS + (_PICKLES if has_safetensors else []))
    except Exception as error:
        # Every way a download can fail becomes the operator's one line.
        raise LoadError(_download_failure(served, error)) from error


def _snapshot(served: ServedModel, ignored: list[str], *, local_files_only: bool = False) -> Path:
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            served.model,
            revision=served.revision,
            cache_dir=served.cache_dir,
            token=_token(),
            ignore_patterns=ignored,
            local_files_only=local_files_only,
        )
    )


def _download_failure(served: ServedModel, error: Exception) -> str:
    from huggingface_hub import errors

    source = served.source
    if isinstance(error, errors.GatedRepoError):
        return (
            f"{source} is gated: accept its terms on the Hub and set HF_TOKEN to a token that may "
            "read it"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{source}: the Hub has no such revision"
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"{source}: the Hub has no such model, or it is private and HF_TOKEN is not set to a "
            "token that may read it"
        )
    return f"{source} could not be downloaded into {served.cache_dir.name}/: {_line(error)}"


def _load(served: ServedModel, auto_class: Any, files: Path, part: str = "", **options: Any) -> Any:
    try:
        return auto_class.from_pretrained(
            files, local_files_only=True, trust_remote_code=served.trust_remote_code, **options
        )
    except Exception as error:
        # Transformers raises many kinds; the operator gets one line for any of them.
        if "trust_remote_code" in str(error) and not served.trust_remote_code:
            raise LoadError(
                f"{served.source} runs code of its own: read it, and set trust_remote_code: true "
                "to allow it"
            ) from error
        raise LoadError(f"{served.source}: {part}{_line(error)}") from error


def _token() -> str | None:
    return next((os.environ[name] for name in _TOKEN_VARIABLES if os.environ.get(name)), None)


def _line(error: BaseException) -> str:
    """An error's kind and text, without any token that the text may carry."""
    text = str(error) or type(error).__name__
    for name in _TOKEN_VARIABLES:
        if os.environ.get(name):
            text = text.replace(os.environ[name], f"${name}")
    # Cut last, so that no half of a token stays.
    return f"{type(error).__name__}: {reason(LoadError(text))}"
