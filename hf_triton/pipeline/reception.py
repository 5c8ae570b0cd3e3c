"""Receives requests and follows them until they are answered. Reading (decoding images and sounds
is slow) and answering (so is encoding images) have a few threads each; the engine computes.

Answers are JSON: arrays become lists, images PNG and sounds WAV data: URLs, NaN and infinity null.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch

from hf_triton.runtime.engine.reception import WorkReception
from hf_triton.runtime.errors import EngineError, RequestError
from hf_triton.runtime.metrics.publishing import Family
from hf_triton.runtime.metrics.work_metrics import pipeline_families
from hf_triton.runtime.request.file_threads import FileThreads, Reading
from hf_triton.runtime.request.request import Request
from hf_triton.runtime.request.responder import Array, strings
from hf_triton.runtime.request.tensors import RequestFields

from . import request as requests
from .pipeline_loading import LoadedPipeline
from .request import Query

_MIB = 1024 * 1024


class Reception(WorkReception):
    def __init__(self, loaded: LoadedPipeline, *, batched: bool) -> None:
        self._reader, self._batched, options = loaded.reader, batched, loaded.options
        self._max_input_mib = options.max_input_mib
        num_threads = options.num_reader_threads
        self._files = FileThreads(num_threads)
        super().__init__(
            loaded.engine,
            [self._files],
            ThreadPoolExecutor(
                num_threads, "pipeline-answers", initializer=torch.set_num_threads, initargs=(1,)
            ),
            max_queue_size=options.max_queue_size,
            description=loaded.description,
            unload_grace_s=options.unload_grace_s,
            tokenizer=loaded.engine.pipe.tokenizer,
        )

    def families(self) -> Iterator[Family]:
        running = self._engine.num_running
        waiting = max(0, self.num_open - running)
        yield from pipeline_families(self._engine.metrics, running=running, waiting=waiting)
        yield from self._thread.cpu_threads.families()

    def _accept(self, request: Request) -> None:
        # There is one output, even if a request lists others.
        responder, trace = request.responder, request.trace
        fields = RequestFields(request.inputs, request.parameters, batched=self._batched)
        fields.check_parameters({*self._reader.call.names, *requests.INPUTS})
        rows, parameters = requests.take(fields)
        num_bytes = sum(len(v) for row in rows for values in row.values() for v in values)
        if num_bytes > self._max_input_mib * _MIB:
            raise RequestError(
                f"got {num_bytes / _MIB:.1f} MiB of input, at most {self._max_input_mib:g} "
                "(max_input_mib)"
            )

        def read() -> Callable[[], None]:
            self._thread.check_running()  # skip decoding what won't be computed
            found = [self._reader.read(row, parameters) for row in rows]
            inputs = [given for row in found for query in row for given in query.inputs]
            answer = partial(self._answer, found)
            return partial(self._submit, inputs, responder, answer, trace)

        self._files.run(Reading(responder, call=request.call), num_bytes, read)

    def _answer(self, rows: list[list[Query]], results: list[Any]) -> Mapping[str, Array]:
        left = iter(results)
        texts = []
        for query in chain.from_iterable(rows):
            own = [next(left) for _ in query.inputs]
            texts.append(to_json(own if query.is_list else own[0]))
        output = strings(texts)
        return {"output": output.reshape(len(rows), -1) if self._batched else output}


def to_json(result: Any) -> str:
    """One line of JSON; raises EngineError for types without a JSON form."""
    return json.dumps(_plain(result), ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return _plain(value.value)
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return _plain_object(value)
    if isinstance(value, list | tuple | set):
        return [_plain(one) for one in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if hasattr(value, "detach"):  # a torch tensor
        return _plain(value.detach().cpu().tolist())
    if hasattr(value, "save") and hasattr(value, "convert"):  # a PIL image
        return _png(value)
    if hasattr(value, "messages"):  # transformers' Chat
        return _plain(value.messages)
    raise EngineError(f"the pipeline answered a {type(value).__name__}, which JSON can't hold")


def _plain_object(value: Mapping[Any, Any]) -> dict[str, Any]:
    if value.get("type") in ("image", "audio") and len(value) == 2:
        return {"type": value["type"]}  # the chat's input, which pipelines repeat beside the answer
    if set(value) == {"audio", "sampling_rate"} and not isinstance(value["audio"], str):
        rate = int(value["sampling_rate"])
        return {"audio": _wav(value["audio"], rate), "sampling_rate": rate}
    return {str(key): _plain(one) for key, one in value.items()}


def _png(picture: Any) -> str:
    packed = io.BytesIO()
    picture.save(packed, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(packed.getvalue()).decode()}"


def _wav(samples: Any, rate: int) -> str:
    """16-bit samples of (num_samples,) or (channels, num_samples)."""
    import soundfile

    array = samples.detach().cpu().float().numpy() if hasattr(samples, "detach") else samples
    array = np.atleast_2d(np.asarray(array, dtype=np.float32))
    packed = io.BytesIO()
    frames = array.reshape(-1, array.shape[-1]).T
    soundfile.write(packed, np.clip(frames, -1, 1), rate, format="WAV", subtype="PCM_16")
    return f"data:audio/wav;base64,{base64.b64encode(packed.getvalue()).decode()}"
