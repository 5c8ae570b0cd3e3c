"""Starts the vllm engine for a served model, or says in one line why it can't be."""

from __future__ import annotations

import dataclasses
import difflib
import re
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from hf_triton.runtime.devices.device import Placement, free_bytes
from hf_triton.runtime.errors import LoadError, reason
from hf_triton.runtime.weights.model_files import adapters_at_load, model_files
from hf_triton.runtime.weights.served_model import ServedModel
from hf_triton.runtime.weights.weight_loading import load_config, load_tokenizer, resolve_dtype
from hf_triton.text_generation.engine.engine import EngineSetup
from hf_triton.text_generation.engine.generation_rules import eos_token_ids
from hf_triton.text_generation.options import Options

from . import arguments, client, processes
from .arguments import AdapterFile, adapter_arguments, adapter_files
from .vllm_engine import VllmEngine

_OTHERS = "use engine: auto, in_flight or generate"
_INSTALL = (
    "vLLM is not installed in the Python that runs this model: give the model an environment with "
    "it by python_env:, or use engine: auto (docs/vllm.md)"
)


@dataclass(frozen=True)
class ModelDescription:
    config: Any
    generation_config: Any
    dtype: Any


def make_engine(
    served: ServedModel, options: Options, placement: Placement, num_threads: int
) -> tuple[VllmEngine, Any]:
    """The engine, not started, and the tokenizer. Raises LoadError for missing files, for an
    encoder-decoder, and where vLLM is not installed or can't be started like this.
    """
    from transformers import GenerationConfig

    files = model_files(served)
    config = load_config(served, files)
    if config.is_encoder_decoder:
        raise LoadError("engine: got vllm, but encoder-decoder models can't run on it; use auto")
    try:
        generation_config = GenerationConfig.from_pretrained(files, local_files_only=True)
    except OSError:  # it has no such file
        generation_config = GenerationConfig.from_model_config(config)
    dtype = resolve_dtype(served.dtype, config, placement.device)
    tokenizer = load_tokenizer(served, files)
    described = ModelDescription(config, generation_config, dtype)
    given, device = options.vllm or {}, torch.device(placement.device)
    processes.set_variables(
        gpu_index=arguments.gpu_index(placement),
        num_threads=num_threads,
        num_ranks=arguments.num_devices(given),
        is_cpu=device.type == "cpu",
    )
    known, version, device_type = _installed()
    arguments.require_known(given, known, version)
    arguments.require_devices(given, placement, device_type, torch.cuda.device_count())
    gib = options.kv_cache_gib
    cache = None if gib is None else int(gib * 2**30)
    if cache is None and device.type == "cpu":
        size = getattr(dtype, "itemsize", 4)
        cache = arguments.default_cache_bytes(options, config, size, free_bytes(device))
    adapters = adapters_at_load(served, partial(adapter_files, served))
    folders = {one.adapter.name: one.folder for one in adapters}
    takes_adapters = served.adapters_file or folders
    started = {
        **(adapter_arguments(folders, given) if takes_adapters else {}),
        **arguments.engine_arguments(served, options, files, dtype, cache),
    }
    setup = EngineSetup(
        model=described,
        options=options,
        device=torch.device("cpu"),  # only vLLM's own process uses a GPU
        eos_token_ids=eos_token_ids(described, tokenizer),
        num_threads=1,
        free_bytes=free_bytes,
        prepare=lambda model: None,
    )
    return VllmEngine(setup, partial(_start, started, adapters, config)), tokenizer


async def _start(
    started: dict[str, Any], adapters: list[AdapterFile], config: Any, count: client.Count
) -> client.AsyncVllm:
    try:
        with processes.children_die_with_parent():
            return await client.start(started, adapters, count)
    except LoadError:
        raise
    except Exception as error:
        # vLLM raises many kinds; the operator gets one line for any of them.
        raise LoadError(_start_failure(error, config)) from error


def _installed() -> tuple[frozenset[str], str, str]:
    """The names of vLLM's arguments, its version, and its type of device."""
    try:
        import vllm
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
    except ModuleNotFoundError as error:
        if error.name == "vllm":
            raise LoadError(f"engine: got vllm, but {_INSTALL}") from error
        raise LoadError(f"engine: vllm: vLLM can't be imported: {reason(error)}") from error
    except Exception as error:
        # A vLLM for another Python, torch or machine raises any kind.
        text = f"{type(error).__name__}: {reason(error)}"
        raise LoadError(f"engine: vllm: vLLM can't be imported: {text}") from error
    names = frozenset(field.name for field in dataclasses.fields(AsyncEngineArgs))
    return names, f"vLLM {vllm.__version__}", str(current_platform.device_type)


def _start_failure(error: Exception, config: Any) -> str:
    text = str(error)
    names = getattr(config, "architectures", None) or [type(config).__name__]
    if re.search(r"architectures .* not supported|no vLLM implementation", text):
        known = re.findall(r"'(\w+)'", text.partition("upported architectures:")[2])
        near = difflib.get_close_matches(names[0], known, 3)
        nearest = f" (nearest that it knows: {', '.join(near)})" if near else ""
        return f"engine: vLLM does not know {names[0]}{nearest}; {_OTHERS}"
    if "Engine core initialization failed" in text:
        return "engine: vllm: its process could not start; the log above says why"
    said = re.sub(r"For further information visit \S+", "", text)
    return f"engine: vllm: {type(error).__name__}: {reason(LoadError(said))}"
