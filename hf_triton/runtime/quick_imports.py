"""Leaves parts of torch and transformers out that a model does not run on a machine without a GPU,
which halves the time of their imports.

torch's compiler is imported when something of it is first used. Tensors over several processes are
hidden as a build of torch without them hides them, packages that only some models need as if they
were not installed. The scan of the files of all of transformers' models is kept. Models are built
with data that nothing has touched, for torch imports as much again for tensors without data. Only
for tested releases.
"""

from __future__ import annotations

import importlib.util
import json
import marshal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from . import disk_cache
from .regular_file import MOST_JSON_BYTES, read_regular

RELEASES = {"torch": ("2.13",), "transformers": ("5.20", "5.21", "5.22", "5.23")}
_COMPILER = "torch._dynamo"
_WITHOUT_DATA = "torch._meta_registrations"  # operators on tensors without data
_KEPT_MODULES = ("_trace_wrapped_higher_order_op",)  # which transformers' masks import
_MARKS = ("allow_in_graph", "assume_constant_result", "disable")
_NEED_ALL_IMPORTS = ("vllm", "onnxruntime")  # engines that use what is left out
# transformers imports them wherever they are installed.
_OPTIONAL = ("accelerate", "torchao")
# The keys of model.json with which a model may need them.
_ASKING = (
    *("adapters", "adapters_file", "is_adapter", "quantization", "gguf_file"),
    *("trust_remote_code", "device_map", "hooks"),
)


class Deferred(ModuleType):
    """A package whose code runs when one of its attributes is first read, but for decorators that
    mark functions for the compiler: they return the function as it is. ``apart`` are modules of the
    package that need nothing else of it.
    """

    def __init__(self, name: str, apart: tuple[str, ...] = ()) -> None:
        super().__init__(name)
        parent = importlib.util.find_spec(name.partition(".")[0])  # which is not imported
        spec = parent and PathFinder.find_spec(name, parent.submodule_search_locations)
        if spec is None or spec.loader is None:
            raise ModuleNotFoundError(f"no module named {name}")
        self.__spec__, self.__package__, self.__file__ = spec, name, spec.origin
        self.__loader__ = self._loader = spec.loader
        self._lock, self.has_begun = threading.RLock(), False
        sys.modules[name] = self
        self.__path__ = self._paths = list(spec.submodule_search_locations or ())
        for module in apart:
            importlib.import_module(f"{name}.{module}")
        del self.__path__  # imports of the package's other modules read it

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'")
        if name in _MARKS and not self.has_begun:
            return self._mark
        self.run()
        return self.__getattribute__(name)

    def _mark(self, fn: Any = None, *_: Any, **options: Any) -> Any:
        return partial(self._mark, **options) if fn is None else fn

    def run(self) -> None:
        """Imports it as Python does, and first what it may use."""
        with self._lock:
            if self.has_begun:
                return
            self.has_begun, self.__path__ = True, self._paths
            needed = sys.modules.get(_WITHOUT_DATA)
            if isinstance(needed, Deferred):
                needed.run()
            self._loader.exec_module(self)


class _Changes:
    """Finds two modules of transformers, and changes a function of each once it is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        change = _CHANGES.get(name)
        spec = PathFinder.find_spec(name, path, target) if change else None
        loader: Any = spec and spec.loader
        if change is None or loader is None:
            return None
        run = loader.exec_module

        def run_and_change(module: ModuleType) -> None:
            run(module)
            change(module)

        loader.exec_module = run_and_change
        return spec


def _keep_scan(module: Any) -> None:
    scan = module.create_import_structure_from_path
    module.create_import_structure_from_path = partial(_kept_scan, scan)


def _build_with_data(module: Any) -> None:
    """transformers' own way where DeepSpeed is used: weights are read into what was built."""
    own = module.PreTrainedModel.get_init_context

    def contexts(cls: Any, *args: Any, **options: Any) -> list[Any]:
        import torch

        found = own.__func__(cls, *args, **options)
        if not _is_left_out(_WITHOUT_DATA):
            return list(found)
        without_device = [one for one in found if not isinstance(one, torch.device)]
        return [*without_device, module.init.no_init_weights()]

    module.PreTrainedModel.get_init_context = classmethod(contexts)


_CHANGES: dict[str, Callable[[Any], None]] = {
    "transformers.utils.import_utils": _keep_scan,
    "transformers.modeling_utils": _build_with_data,
}


def _kept_scan(scan: Callable[[Any], Any], path: Any) -> Any:
    """Scans a folder, or that of a file; the result for the folder of all models is kept."""
    folder = Path(path)
    folder = folder if folder.is_dir() else folder.parent
    if folder.name != "models":
        return scan(path)
    version, changed_ns = metadata.version("transformers"), folder.stat().st_mtime_ns
    file = disk_cache.path_of("imports", version, str(folder), changed_ns)
    if kept := disk_cache.get(file):
        return marshal.loads(kept)  # noqa: S302, only this user can write there
    found = scan(path)
    if file is not None:
        with suppress(OSError):
            disk_cache.put(file, marshal.dumps(found))
    return found


def leave_out(version_folder: Path) -> None:
    """Leaves out what the Triton model in that folder doesn't need, if there is no GPU."""
    try:
        served = json.loads((version_folder / "model.json").read_text(encoding="utf-8"))
        installed = {name: metadata.version(name).split(".") for name in RELEASES}
        are_known = all(".".join(installed[n][:2]) in known for n, known in RELEASES.items())
        if served["options"].get("engine") in _NEED_ALL_IMPORTS or not are_known:
            return
        is_plain = _is_plain(version_folder.parent, served)
    except (OSError, ValueError, LookupError, AttributeError, TypeError, ImportError):
        return  # the load reports what is wrong or not installed
    if is_plain and "torch" not in sys.modules:
        Deferred(_WITHOUT_DATA)
    import torch

    if torch.cuda.is_available() or _COMPILER in sys.modules:
        if _is_left_out(_WITHOUT_DATA):
            sys.modules[_WITHOUT_DATA].run()
        return
    if _is_left_out(_WITHOUT_DATA):
        from torch._opaque_base import OpaqueBaseMeta

        torch._C._set_generator_metaclass(OpaqueBaseMeta)  # noqa: SLF001, left out with the others
    torch.distributed.is_available = lambda: False
    Deferred(_COMPILER, _KEPT_MODULES)
    sys.meta_path.insert(0, _Changes())
    if is_plain:
        for package in _OPTIONAL:
            sys.modules.setdefault(package, None)  # type: ignore[arg-type]


def without_weights() -> AbstractContextManager[Any]:
    """Modules are built in it on the meta device, or with data that nothing touches."""
    import torch
    from transformers.initialization import no_init_weights

    return no_init_weights() if _is_left_out(_WITHOUT_DATA) else torch.device("meta")


def _is_left_out(name: str) -> bool:
    module = sys.modules.get(name)
    return isinstance(module, Deferred) and not module.has_begun


def _is_plain(folder: Path, served: dict[str, Any]) -> bool:
    """True if the model is sure to need no package that only some models need."""
    if any(served.get(key) for key in _ASKING):
        return False
    if served["local"]:
        configs = [folder / served["model"] / "config.json"]
    else:
        cache = folder.parent / served["public_name"] / "hf_cache"
        configs = [*cache.glob("models--*/snapshots/*/config.json")]
    if any(path.with_name("adapter_config.json").exists() for path in configs):
        return False
    texts = [read_regular(path, MOST_JSON_BYTES) for path in configs]
    return bool(texts) and not any(b"quantization_config" in text for text in texts)
