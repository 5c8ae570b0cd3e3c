"""Stores a model's ONNX files beside its weights, each written atomically. A folder's name contains
a hash of everything that the file depends on, so any change leads to a new export.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hf_triton.runtime import log
from hf_triton.runtime.devices.device import has_any_flag
from hf_triton.runtime.disk_cache import exclusive
from hf_triton.runtime.errors import LoadError, reason
from hf_triton.runtime.weights.model_files import model_files
from hf_triton.runtime.weights.served_model import ServedModel

from ..runners.encoder_runner import RunnerSetup
from .export import OPSET, export, missing_packages, quiet

MODEL_FILE = "model.onnx"
_FOLDER, _LOCK = "onnx", ".lock"


class OnnxFiles:
    """One model's ONNX file for one quantisation, ``none`` or ``int8``."""

    def __init__(self, setup: RunnerSetup, served: ServedModel, quantization: str) -> None:
        """Raises LoadError where the packages are missing or the model's files are."""
        self._setup, self._served, self._quantization = setup, served, quantization
        self.home = served.cache_dir / _FOLDER
        self.folder = self.home / self._key()

    @property
    def path(self) -> Path:
        return self.folder / MODEL_FILE

    def ensure(self, *, anew: bool = False) -> bool:
        """Makes the file if it is missing, or ``anew`` where it is broken; returns True if it
        existed. Raises LoadError.
        """
        with self._writing():
            if anew and self.folder.exists():
                shutil.rmtree(self.folder)
            was_there = self.path.is_file()
            if not was_there:
                self._make()
            return was_there

    def _make(self) -> None:
        name, began_s = self._served.public_name, time.monotonic()
        # Files of older models and package versions, and of interrupted runs.
        for folder in self.home.glob(f"{self.folder.name.rpartition('-')[0]}-*"):
            shutil.rmtree(folder, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix=f"{self.folder.name}.", dir=self.home))
        try:
            if self._quantization == "int8":
                self._quantize(scratch)
            else:
                log.info(f"{name}: exporting to ONNX, once")
                export(self._setup, scratch / MODEL_FILE)
            scratch.chmod(0o755)  # mkdtemp's is for its maker alone
            scratch.rename(self.folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        log.info(f"{name}: {self.path} made in {time.monotonic() - began_s:.1f} s")

    def _quantize(self, scratch: Path) -> None:
        full = OnnxFiles(self._setup, self._served, "none")
        full.home, full.folder = self.home, self.home / full.folder.name
        if not full.path.is_file():
            full._make()
        log.info(f"{self._served.public_name}: quantising to int8, once")
        try:
            quantize(full.path, scratch / MODEL_FILE)
        except Exception as error:
            shutil.rmtree(full.folder, ignore_errors=True)  # in case it is broken
            line = f"quantising to int8 failed: {type(error).__name__}: {reason(error)}"
            raise LoadError(f"{line}; use quantization: none") from error

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Locks the folder against the model's other instances. A read-only repository gets a
        temporary folder for this load.
        """
        with contextlib.ExitStack() as stack:
            try:
                self.home.mkdir(parents=True, exist_ok=True)
                (self.home / _LOCK).touch()
            except OSError as error:
                if not self.path.is_file():
                    log.warn(
                        f"{self._served.public_name}: {self.home} can't be written "
                        f"({error.strerror}): the model is exported again at every load"
                    )
                    self.home = Path(tempfile.mkdtemp(prefix="hf-triton-onnx-"))
                    self.folder = self.home / self.folder.name
            stack.enter_context(exclusive(self.home / _LOCK))
            try:
                yield
            except OSError as error:
                raise LoadError(f"writing the ONNX file failed: {reason(error)}") from error

    def close(self) -> None:
        """Removes a temporary file once it has been loaded."""
        if not self.home.is_relative_to(self._served.cache_dir):
            shutil.rmtree(self.home, ignore_errors=True)

    def _key(self) -> str:
        setup, found = self._setup, []
        for path in sorted(model_files(self._served).iterdir()):
            if path.is_file():
                status = path.stat()
                # In the Hub's cache a file is a link to a blob that is named by its hash.
                mark = path.resolve().name if path.is_symlink() else status.st_mtime_ns
                found.append([path.name, status.st_size, mark])
        facts = {
            "files": found,
            "class": type(setup.model).__qualname__,
            "token_types": setup.has_token_types,
            "opset": OPSET,
            "versions": _versions(),
            "vnni": self._quantization == "int8" and has_vnni(),
        }
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
        dtype = str(setup.model.dtype).removeprefix("torch.")
        return f"{setup.output}-{dtype}-{self._quantization}-{digest}"


def _versions() -> dict[str, str]:
    try:
        import onnx  # noqa: F401, what is broken is found here
        import onnxruntime
        import onnxscript  # noqa: F401

        names = ("torch", "transformers", "onnx", "onnxscript")
        found = {name: importlib.metadata.version(name) for name in names}
        # Its GPU build is a distribution of another name.
        return {**found, "onnxruntime": onnxruntime.__version__}
    except ImportError as error:
        raise missing_packages(error) from error


def quantize(source: Path, target: Path) -> None:
    """Writes ``target``, all in one file, from the float32 model ``source``."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(source)
    # The exporter writes shapes that onnxruntime's shape inference contradicts with an error.
    del model.graph.value_info[:]
    with quiet():
        quantize_dynamic(
            model,
            target,
            op_types_to_quantize=["MatMul", "Gemm"],
            per_channel=True,
            reduce_range=not has_vnni(),
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )


def has_vnni() -> bool:
    """Returns True if the processor adds products of 8 bits in 32 bits. Others overflow 16 bits on
    the way, and get weights of 7 bits.

    See https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html.
    """
    return has_any_flag("avx512_vnni", "avx_vnni")
