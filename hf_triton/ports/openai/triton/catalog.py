"""The models that the API offers, under their names in models.yaml, as Triton reports them.

Nothing is configured: a model's config.pbtxt names its task and role. Models may be loaded and
unloaded at any time, so the list is read again after two seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from generator.spec.task_sets import (
    CHAT_TASKS,
    CLASSIFIER_TASKS,
    COMPLETION_TASKS,
    EMBEDDING_TASKS,
    SPEECH_TASKS,
)
from generator.spec.triton_models import (
    ADAPTERS_PARAMETER,
    ENGINE_SUFFIX,
    ROLE_PARAMETER,
    SERVED_NAMES_PARAMETER,
    TASK_PARAMETER,
)
from hf_triton.ports.openai.schema.errors import (
    ApiError,
    bad_field,
    model_is_loading,
    model_is_not_ready,
    model_not_found,
    served_elsewhere,
    wrong_task,
)
from hf_triton.ports.repeats import NOTICED_S, UNREACHABLE, WAIT_S, NotReady
from hf_triton.tritonserver.model_state import State

TRUNCATED = "truncated"  # of encoders, whether a text was cut
SIMILARITY = "similarity"  # of embedding models, how embeddings are compared
# Together's words for what models are for.
KINDS = {
    **dict.fromkeys(COMPLETION_TASKS, "language"),
    **dict.fromkeys(CHAT_TASKS, "chat"),
    **dict.fromkeys(EMBEDDING_TASKS, "embedding"),
    **dict.fromkeys(CLASSIFIER_TASKS, "rerank"),
    **dict.fromkeys(SPEECH_TASKS, "transcribe"),
}
ALL_TASKS = (*COMPLETION_TASKS, *EMBEDDING_TASKS, *CLASSIFIER_TASKS, *SPEECH_TASKS)


_GOOD_FOR_S = 2.0
# A name that is not there may have come since, but not every such request asks Triton.
_MISSES_GOOD_FOR_S = 0.2
_LONGEST_NAME = 255  # of a folder
_ASK_AGAIN_S = 0.5
Told = TypeVar("Told")
ToBeServed = Callable[[], Collection[str] | None]
AdaptersNow = Callable[[str], tuple[str, ...] | None]


@dataclass(frozen=True)
class ServedModel:
    """``triton_name`` is the model of Triton's that holds the engine: with ``streams`` it is
    decoupled, and is asked by a gRPC stream. ``adapters`` are those that its requests may name;
    ``adapter`` is the one that they do, where this is an adapter under a name of its own.
    ``takes_adapters`` says whether they may be others than when the model was loaded.
    ``served_names`` are other names of it, and ``alias_of`` is its own under one of those.
    ``is_ours`` is False of one that does not run our library; ``outputs`` are the names of its
    outputs.
    """

    name: str
    triton_name: str
    task: str
    streams: bool
    max_batch_size: int
    adapters: tuple[str, ...] = ()
    adapter: str | None = None
    served_names: tuple[str, ...] = ()
    alias_of: str | None = None
    is_ours: bool = True
    outputs: frozenset[str] = frozenset()
    takes_adapters: bool = False

    @property
    def entry(self) -> str:
        """Its own name, or that of the model whose adapter it is."""
        return self.alias_of or self.name.partition(":")[0]

    @property
    def is_batched(self) -> bool:
        """Whether its tensors begin with a batch's dimension."""
        return self.max_batch_size > 0


class Source(Protocol):
    """Where the catalog reads; all raise ApiError."""

    async def ready_models(self) -> Collection[str]:
        """The names of Triton's models that are ready."""

    async def config(self, model: str) -> Any:
        """A ModelConfig, None where the model is gone."""

    async def is_ready(self, model: str) -> bool | None:
        """Whether a version of it is ready; None where Triton knows no such model."""


class Catalog:
    """The models of one Triton. ``to_be_served`` are the names in models.yaml, and ``adapters_now``
    the adapters of a Triton model, which may be others than when it was loaded; None where nobody
    knows them. ``coming`` are the ModelConfigs of those that are down and come back, or that a
    request has loaded: their requests wait. ``change`` waits until that may be others.
    """

    def __init__(
        self,
        source: Source,
        to_be_served: ToBeServed,
        not_ready: NotReady,
        adapters_now: AdaptersNow = lambda _name: None,
        coming: Callable[[], Sequence[Any]] = tuple,
        may_come_back: Callable[[], bool] = lambda: False,
        change: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._source = source
        self._not_ready = not_ready
        self._to_be_served, self._adapters_now = to_be_served, adapters_now
        self._coming, self._may_come_back, self._change = coming, may_come_back, change
        self._models: dict[str, ServedModel] = {}
        self._seen_at_s: dict[str, float] = {}  # by name, when it was there last
        self._own_names: dict[str, str] = {}  # of aliases, also while their models are loaded again
        self._elsewhere: dict[str, str] = {}  # the tasks of models that no path here is for
        self._read_at_s: float | None = None
        self._reading = asyncio.Lock()

    async def models(self, good_for_s: float = _GOOD_FOR_S) -> dict[str, ServedModel]:
        """The models by name, read ``good_for_s`` ago at most. Raises ApiError."""
        await self._while_away(partial(self._read_if_older, good_for_s))
        return self._models

    async def _read_if_older(self, good_for_s: float) -> None:
        if not self._is_younger_than(good_for_s):
            async with self._reading:
                if not self._is_younger_than(good_for_s):  # another request has read them
                    await self._read()

    async def _while_away(self, ask: Callable[[], Awaitable[Told]]) -> Told:
        """Asks again while there is no tritonserver, where it is started again. Raises ApiError."""
        ends_at_s = time.monotonic() + WAIT_S
        while True:
            try:
                return await ask()
            except ApiError as error:
                is_away = error.message == UNREACHABLE and self._may_come_back()
                if not is_away or time.monotonic() > ends_at_s:
                    raise
            await self._change(_ASK_AGAIN_S)

    async def find(self, name: str, tasks: Sequence[str] = ()) -> ServedModel:
        """The model of that name; without a name the only one. Raises ApiError: 400 where several
        could be meant, or no path here is for its task; 404 where there is none, or it is of none
        of ``tasks``; 503 while it is not ready.
        """
        if not name:
            return self._only_one(await self.models(), tasks)
        found = _of_name(name, await self.models())
        if found is None:
            found = _of_name(name, await self.models(_MISSES_GOOD_FOR_S))
        model = self._own_names.get(name, name.partition(":")[0])
        if found is None and await self._is_to_be_served(model):
            told = self._not_ready().get(model)
            if told is None or told.state is State.LOADING:
                raise model_is_loading(name)
            raise model_is_not_ready(name, told.failure or told.reason, stays=told.is_lost)
        if found is None and tasks and name in self._elsewhere:
            raise served_elsewhere(name, self._elsewhere[name])
        if found is None:
            raise model_not_found(name, self._named(tasks))
        if tasks and found.task not in tasks:
            raise wrong_task(name, found.task, tasks, self._named(tasks))
        return found

    def _only_one(self, models: Mapping[str, ServedModel], tasks: Sequence[str]) -> ServedModel:
        own = (one for one in models.values() if not one.adapter and not one.alias_of)
        found = [one for one in own if one.task in tasks]
        if len(found) != 1:
            allowed = f"one of {', '.join(self._named(tasks))}" if found else "none is ready"
            raise bad_field("model", "none", allowed)
        return found[0]

    async def _is_to_be_served(self, name: str) -> bool:
        """Whether it will be there: Triton knows it and has no version of it that is ready, as
        while a model is loaded again; or is still to be told of it, as after a restart.
        """
        served = self._to_be_served()
        if len(name) > _LONGEST_NAME or (served is not None and name not in served):
            return False
        parts = (name, name + ENGINE_SUFFIX)
        ready = [await self._while_away(partial(self._source.is_ready, one)) for one in parts]
        return False in ready or (served is not None and ready[0] is None)

    async def changed(self, model: ServedModel) -> ServedModel | None:
        """The model as it is now, if it has changed since; else None. Raises ApiError."""
        found = (await self.models(_MISSES_GOOD_FOR_S)).get(model.name)
        same = found == model or (found is not None and found.task != model.task)
        return None if same else found

    def _named(self, tasks: Sequence[str]) -> list[str]:
        return sorted(n for n, model in self._models.items() if not tasks or model.task in tasks)

    def forget(self) -> None:
        """What was read is wrong: the next request reads anew."""
        self._read_at_s = None

    def _is_younger_than(self, age_s: float) -> bool:
        return self._read_at_s is not None and time.monotonic() - self._read_at_s < age_s

    async def _read(self) -> None:
        ready: Sequence[Any] = ()
        try:
            names = await self._source.ready_models()
            ready = await asyncio.gather(*map(self._source.config, names))
        except ApiError as error:
            # A Triton that is busy loading can be slow to tell; most likely they are the same. One
            # that has died comes back with them.
            if self._models and (error.status == 504 or self._may_come_back()):
                return
            if not (self._may_come_back() and self._coming()):
                raise
        configs = list(filter(None, ready))
        are_ready = {config.name for config in configs}
        configs += [config for config in self._coming() if config.name not in are_ready]
        known = map(self._with_adapters, filter(None, map(served_model, configs)))
        found = [one for model in known for one in under_all_names(model)]
        # Aliases first: a model's own name stands above them.
        found.sort(key=lambda one: one.alias_of is None)
        models = {one.name: one for one in found if one.task in ALL_TASKS}
        lost, now = self._lost(models), time.monotonic()
        seen_at_s = {name: self._seen_at_s[name] for name in lost}
        self._models, self._seen_at_s = (
            {**lost, **models},
            {**seen_at_s, **dict.fromkeys(models, now)},
        )
        self._own_names.update((one.name, one.alias_of) for one in found if one.alias_of)
        self._elsewhere = {one.name: one.task for one in found if one.task not in ALL_TASKS}
        self._read_at_s = now

    def _lost(self, models: Collection[str]) -> dict[str, ServedModel]:
        """Those that are gone though they are to be served: nobody has told yet that they died."""
        served = (self._may_come_back() and self._to_be_served()) or ()
        since_s = time.monotonic() - NOTICED_S
        return {
            name: one
            for name, one in self._models.items()
            if name not in models and self._seen_at_s[name] > since_s and one.entry in served
        }

    def _with_adapters(self, model: ServedModel) -> ServedModel:
        """The model with its adapters of now, where it takes any."""
        now = self._adapters_now(model.triton_name) if model.takes_adapters else None
        return model if now is None else replace(model, adapters=now)


def served_model(config: Any) -> ServedModel | None:
    """What users see of a model of Triton's: nothing of a front, its engine stands for both, nor
    of a model that is none of models.yaml's.
    """
    parameters = {name: value.string_value for name, value in config.parameters.items()}
    role = parameters.get(ROLE_PARAMETER)
    task = parameters.get(TASK_PARAMETER)
    if task is None or role not in ("engine", "whole", "ensemble"):
        return None
    streams = role == "engine"
    name = config.name.removesuffix(ENGINE_SUFFIX) if streams else config.name
    adapters, served_names = (
        tuple(filter(None, parameters.get(parameter, "").split(",")))
        for parameter in (ADAPTERS_PARAMETER, SERVED_NAMES_PARAMETER)
    )
    return ServedModel(
        *(name, config.name, task, streams, config.max_batch_size, adapters),
        served_names=served_names,
        outputs=frozenset(output.name for output in config.output),
        takes_adapters=ADAPTERS_PARAMETER in parameters,
    )


def under_all_names(model: ServedModel) -> Iterator[ServedModel]:
    """The model, also under its other names, and each of its adapters as ``model:adapter``: no
    model's own name has a colon.
    """
    yield model
    for alias in model.served_names:
        yield replace(model, name=alias, alias_of=model.name)
    for adapter in model.adapters:
        yield replace(model, name=f"{model.name}:{adapter}", adapters=(), adapter=adapter)


def _of_name(name: str, models: Mapping[str, ServedModel]) -> ServedModel | None:
    """The model of that name; or the adapter, by its own name where only one model has it."""
    if name in models:
        return models[name]
    found = [model for model in models.values() if model.adapter == name]
    return found[0] if len(found) == 1 else None
