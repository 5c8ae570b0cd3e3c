"""Leaves out of torch and transformers what a model doesn't run on a machine without a GPU: a
quarter of what importing them takes.

torch's compiler is imported when something of it is first used: until then the decorators that mark
functions for it remember them. Tensors over several processes are hidden as a build of torch
without them hides them, packages that only some models need as if they were not installed. Only for
tested releases.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from functools import partial
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from .regular_file import MOST_JSON_BYTES, read_regular
from .weights.hub_files import ADAPTER_CONFIG

RELEASES = {"torch": ("2.13",), "transformers": ("5.20", "5.21", "5.22", "5.23")}
_COMPILER = "torch._dynamo"
_APART = "_trace_wrapped_higher_order_op"  # of it, which transformers' masks import
_MARKS = ("allow_in_graph", "assume_constant_result", "disable")
_WHOLE = ("vllm", "onnxruntime")  # engines that use what is left out
# transformers imports them wherever they are installed.
_OPTIONAL = ("accelerate", "torchao")
# The keys of model.json with which a model may need them.
_ASKING = (
    *("adapters", "adapters_file", "is_adapter", "quantization", "gguf_file"),
    *("trust_remote_code", "device_map", "hooks"),
)
_WITH_WEIGHTS = (None, "whole", "model")  # the roles of models that don't only describe others


class _Compiler(ModuleType):
    """torch's compiler, whose code runs once something of it is asked for, other than the
    decorators of functions that may come to be compiled: they return what they are given, and get
    it again then.
    """

    def __init__(self) -> None:
        super().__init__(_COMPILER)
        torch = importlib.util.find_spec("torch")  # which is not imported
        folders = torch.submodule_search_locations if torch is not None else None
        spec = PathFinder.find_spec(_COMPILER, folders)
        if spec is None or spec.loader is None:
            raise ModuleNotFoundError(f"no module named {_COMPILER}")
        self.__spec__, self.__package__, self.__file__ = spec, _COMPILER, spec.origin
        self.__loader__ = self._loader = spec.loader
        self._marked: list[tuple[str, Any]] = []
        self._lock, self._has_begun = threading.RLock(), False
        sys.modules[_COMPILER] = self
        self.__path__ = self._paths = list(spec.submodule_search_locations or ())
        importlib.import_module(f"{_COMPILER}.{_APART}")
        del self.__path__  # whoever imports another module of the package asks for it

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(f"module '{_COMPILER}' has no attribute '{name}'")
        if name in _MARKS and not self._has_begun:
            return partial(self._mark, name)
        self._run()
        return self.__getattribute__(name)

    def _mark(self, name: str, fn: Any = None, *_: Any, **options: Any) -> Any:
        if fn is None:
            return partial(self._mark, name, **options)
        self._marked.append((name, fn))
        return fn

    def _run(self) -> None:
        """Imports it as Python does."""
        with self._lock:
            if self._has_begun:
                return
            self._has_begun, self.__path__ = True, self._paths
            self._loader.exec_module(self)
            for name, function in self._marked:
                if name != "disable":  # which would return another function
                    self.__getattribute__(name)(function)


def leave_out(version_folder: Path) -> None:
    """Leaves out what the Triton model in that folder doesn't need, if there is no GPU."""
    try:
        served = json.loads((version_folder / "model.json").read_text(encoding="utf-8"))
        installed = {name: metadata.version(name).split(".") for name in RELEASES}
        are_known = all(".".join(installed[n][:2]) in known for n, known in RELEASES.items())
        if served["options"].get("engine") in _WHOLE or not are_known:
            return
        is_plain = _is_plain(version_folder.parent, served)
    except (OSError, ValueError, LookupError, AttributeError, TypeError, ImportError):
        return  # whoever loads the model tells what is wrong with it, or is not installed
    import torch

    if torch.cuda.is_available() or _COMPILER in sys.modules:
        return
    torch.distributed.is_available = lambda: False
    _Compiler()
    for package in _OPTIONAL if is_plain else ():
        sys.modules.setdefault(package, None)  # type: ignore[arg-type]


def _is_plain(folder: Path, served: dict[str, Any]) -> bool:
    """Whether the model is sure to need no package that only some models need."""
    if any(served.get(key) for key in _ASKING) or served.get("role") not in _WITH_WEIGHTS:
        return False
    if served["local"]:
        configs = [folder / served["model"] / "config.json"]
    else:
        cache = folder.parent / served["public_name"] / "hf_cache"
        configs = [*cache.glob("models--*/snapshots/*/config.json")]
    if any(path.with_name(ADAPTER_CONFIG).exists() for path in configs):
        return False
    texts = [read_regular(path, MOST_JSON_BYTES) for path in configs]
    return bool(texts) and not any(b"quantization_config" in text for text in texts)
