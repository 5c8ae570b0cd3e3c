"""What vLLM's engine is started with for the adapters of a model. Knows no vLLM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_runtime.errors import LoadError
from hf_runtime.hub_files import ADAPTER_CONFIG

_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM has kernels for


def adapter_arguments(folders: Mapping[str, Path], given: Mapping[str, Any]) -> dict[str, Any]:
    """All adapters can be in one step, unless the user's own arguments say less, and all stay in
    memory. ``folders`` is by name; nothing is asked for without any.

    Raises:
        LoadError: an adapter's configuration can't be read, or its rank is too large.
    """
    if not folders:
        return {}
    rank = max(_rank(name, folder) for name, folder in folders.items())
    at_once = given.get("max_loras", len(folders))
    return {
        "enable_lora": True,
        "max_loras": at_once,
        "max_cpu_loras": max(at_once, len(folders)),
        "max_lora_rank": rank,
    }


def _rank(name: str, folder: Path) -> int:
    """The least rank of vLLM's that holds the adapter."""
    try:
        config = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        rank = max(map(int, (config["r"], *(config.get("rank_pattern") or {}).values())))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        problem = f"{ADAPTER_CONFIG} can't be read ({type(error).__name__}: {error})"
        raise LoadError(f"adapter {name}: {problem}") from error
    fitting = next((allowed for allowed in _RANKS if allowed >= rank), None)
    if fitting is None:
        raise LoadError(f"adapter {name}: got rank {rank}, vLLM takes at most {_RANKS[-1]}")
    return fitting
