"""vLLM's AsyncLLM: starts it, sends it requests, and reads its statistics. The one module that
imports vllm, and only where it is used; names that differ between releases are looked up.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from typing import Any

from hf_triton.runtime import log
from hf_triton.runtime.errors import LoadError, RequestError, reason
from hf_triton.runtime.weights.served_model import ServedAdapter
from hf_triton.text_generation.sequence.sequence import Sequence
from hf_triton.text_generation.structured.constraint import Constraint

from .arguments import AdapterFile
from .sampling import bad_words, sampling_arguments, structured_outputs

# Tokens in one output of vLLM's where the answer is not streamed: each output costs this process
# time.
_INTERVAL = 16
_BAD_WORDS = "_bad_words_token_ids"


# Takes how many tokens a step made, how many requests run, and the share of the cache in use.
Count = Callable[[int, int, float], None]


async def start(
    arguments: Mapping[str, Any], adapters: Iterable[AdapterFile], count: Count
) -> AsyncVllm:
    """Starts vLLM's processes, in the event loop that it is to run in. Raises LoadError where it
    can't take an adapter.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    llm = AsyncLLM.from_engine_args(
        AsyncEngineArgs(**arguments), stat_loggers=[_stat_logger(count)]
    )
    loggers = getattr(getattr(llm, "logger_manager", None), "stat_loggers", [])
    del loggers[1:]  # vLLM's own for Prometheus, which is not read, comes after ours
    try:
        vllm = AsyncVllm(llm)
        await vllm.load_adapters(adapters)
        return vllm
    except BaseException:
        llm.shutdown()
        raise


class AsyncVllm:
    """A running AsyncLLM. Each adapter has a key: another one of the same name is another to vLLM,
    and both may have requests.
    """

    def __init__(self, llm: Any) -> None:
        from vllm import SamplingParams, __version__
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        self.name = f"vLLM {__version__}"
        self.llm, config = llm, llm.vllm_config
        self.max_model_len = int(config.model_config.max_model_len)
        self.max_num_seqs = int(config.scheduler_config.max_num_seqs)
        cache = config.cache_config
        self.num_cache_tokens = int(cache.num_gpu_blocks or 0) * int(cache.block_size or 0)
        self._adapters: list[tuple[ServedAdapter, int]] = []
        self.adapter_keys: dict[str, int] = {}  # by name; readers hold it, it is changed in place
        self._requests: dict[int, Any] = {}  # LoRARequests, by key
        self._keys = itertools.count(1)
        self._params, self._prompt = SamplingParams, prompt_maker()
        self._structured = StructuredOutputsParams
        self._has_interval = "stream_interval" in SamplingParams.__struct_fields__
        self._always = {"output_kind": RequestOutputKind.DELTA, "skip_clone": True}
        self._numbers = itertools.count()

    @property
    def is_dead(self) -> bool:
        """True once its processes have ended; may be asked from any thread."""
        llm = self.llm  # None once another thread has shut it down
        return llm is not None and bool(llm.errored)

    async def load_adapters(self, wanted: Iterable[AdapterFile]) -> None:
        """Loads a model's adapters, without those that a request had loaded and vLLM can't take any
        more. Raises LoadError.
        """
        found = []
        for one in wanted:
            try:
                found += await self.read([one])
            except LoadError as error:
                if one.adapter.loaded_at is None:
                    raise
                log.error(f"{error}; the adapter, which a request loaded, is left out")
        self.name_adapters(found)

    async def read(self, wanted: Iterable[AdapterFile]) -> list[tuple[ServedAdapter, int]]:
        """Gives vLLM these adapters, those that it has not yet -> their keys. Raises LoadError."""
        found = []
        for one in wanted:
            own = next((key for adapter, key in self._adapters if adapter == one.adapter), None)
            found.append((one.adapter, own or await self._read(one)))
        return found

    def name_adapters(self, adapters: list[tuple[ServedAdapter, int]]) -> None:
        """Lets requests name these from now on; earlier ones stay until they are forgotten."""
        self._adapters = adapters
        keys = {adapter.name: key for adapter, key in adapters}
        self.adapter_keys.update(keys)
        for name in self.adapter_keys.keys() - keys.keys():
            del self.adapter_keys[name]

    @property
    def removed_adapters(self) -> set[int]:
        """The keys of adapters that vLLM has and that can't be named."""
        return self._requests.keys() - {key for _, key in self._adapters}

    async def forget(self, used: Collection[int]) -> None:
        """Frees removed adapters but for those that are ``used``."""
        for key in self.removed_adapters - set(used):
            await self.llm.remove_lora(key)
            del self._requests[key]

    async def _read(self, one: AdapterFile) -> int:
        from vllm.lora.request import LoRARequest

        key = next(self._keys)
        # vLLM tells requests apart by their names, and shares keys and values by them.
        request = LoRARequest(f"{key}-{one.adapter.name}", key, str(one.folder))
        self._requests[key] = request  # before, so that it is forgotten if this is cancelled
        try:
            await self.llm.add_lora(request)
        except Exception as error:
            # Anybody may have written the files, so a worker may raise any error.
            del self._requests[key]
            name = one.adapter.name
            raise LoadError(f"adapter {name}: vLLM refuses it: {reason(error)}") from error
        return key

    def generate(
        self, sequence: Sequence, *, each_token: bool, eos_token_ids: frozenset[int]
    ) -> AsyncGenerator[Any, None]:
        """vLLM's outputs, each with new tokens only; several at a time unless ``each_token``.
        Closing it ends the request.
        """
        arguments = {**sampling_arguments(sequence.params, eos_token_ids), **self._always}
        if self._has_interval and not each_token:
            arguments["stream_interval"] = _INTERVAL
        if (constraint := sequence.params.constraint) is not None:
            arguments["structured_outputs"] = self._structured(**structured_outputs(constraint))
        params = self._params(**arguments)
        if words := bad_words(sequence.params, eos_token_ids):
            # vLLM's own spelling of words has fewer ways than ours (sampling/logits_processors.py).
            setattr(params, _BAD_WORDS, words)
        number = next(self._numbers)
        prompt = self._prompt(sequence.prompt_token_ids, sequence.cache_salt)
        outputs: AsyncGenerator[Any, None] = self.llm.generate(
            prompt, params, str(number), lora_request=self._requests.get(sequence.adapter_key)
        )
        return outputs if constraint is None else _refusing(outputs, constraint)

    def shutdown(self) -> None:
        llm, self.llm = self.llm, None
        with contextlib.suppress(Exception):  # whatever is left ends with this process
            llm.shutdown()


async def _refusing(
    outputs: AsyncGenerator[Any, None], constraint: Constraint
) -> AsyncGenerator[Any, None]:
    """Turns vLLM's refusals, made before it begins, into RequestErrors."""
    from vllm import exceptions

    refusal = getattr(exceptions, "VLLMClientError", ValueError)
    async with contextlib.aclosing(outputs):
        try:
            async for output in outputs:
                yield output
        except refusal as error:
            why = reason(error)
            raise RequestError(f"{constraint.kind}: vLLM refuses it: {why}") from error


def prompt_maker() -> Callable[[list[int], str | None], Any]:
    """A function of token ids and a cache salt that makes vLLM's prompt."""
    try:
        from vllm.inputs.engine import tokens_input
    except ImportError:
        from vllm import TokensPrompt

        def tokens_prompt(token_ids: list[int], cache_salt: str | None) -> Any:
            salted = {} if cache_salt is None else {"cache_salt": cache_salt}
            return TokensPrompt(prompt_token_ids=token_ids, **salted)

        return tokens_prompt
    return lambda token_ids, cache_salt: tokens_input(token_ids, cache_salt=cache_salt)


def _stat_logger(count: Count) -> Callable[..., Any]:
    """A class for vLLM, which calls it at each step."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class Counting(StatLoggerBase):  # type: ignore[misc]
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
            if scheduler_stats is not None:
                num_tokens = getattr(iteration_stats, "num_generation_tokens", 0)
                count(num_tokens, scheduler_stats.num_running_reqs, scheduler_stats.kv_cache_usage)

        def log_engine_initialized(self) -> None:
            pass

    return Counting
