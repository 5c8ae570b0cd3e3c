"""The models that the API offers, under their names in models.yaml, as Triton reports them.

Nothing is configured: a model's config.pbtxt names its task and role. Models may be loaded and
unloaded at any time, so the list is read again after two seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from generator.errors import TemplateError
from generator.render import model_config
from generator.render.manifest import ADAPTERS_FILE, CONFIG_FILE
from generator.render.model_data import newest_json
from generator.spec.task_sets import OPENAI_TASKS
from hf_triton.ports.openai.schema.errors import (
    ApiError,
    bad_field,
    model_is_loading,
    model_not_found,
    of_field,
)
from hf_triton.ports.openai.triton.client import Triton
from hf_triton.ports.openai.triton.tensors import ServedModel, served_model, under_all_names
from hf_triton.ports.retries import NOTICED_S, UNREACHABLE, WAIT_S, RetryCoordinator
from hf_triton.tritonserver.state_file import served_models

_GOOD_FOR_S = 2.0
# A name that is not there may have come since, but not every such request asks Triton.
_MISSES_GOOD_FOR_S = 0.2
_ASK_AGAIN_S = 0.5
# In this time a caller asks again who was told that a model is being loaded.
_ASKED_AGAIN_S = 5.0


class Repository:
    """The models of the model repository in ``folder``, by its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._parsed: dict[str, tuple[int, Any]] = {}  # with the file's time, in ns

    def adapters(self, model: str) -> tuple[str, ...] | None:
        """The adapters of a Triton model's newest version; None if unknown."""
        listed: Any = newest_json(self.folder / model, Path(ADAPTERS_FILE).name)
        with contextlib.suppress(TypeError, KeyError):
            return tuple(str(adapter["name"]) for adapter in listed)
        return None

    def configs(self, models: Collection[str]) -> list[Any]:
        """The ModelConfigs, as far as they can be read; a file is parsed when it has changed."""
        found = []
        for model in models:
            with contextlib.suppress(OSError, UnicodeDecodeError, TemplateError):
                file = self.folder / model / CONFIG_FILE
                changed_at = file.stat().st_mtime_ns
                if model not in self._parsed or self._parsed[model][0] != changed_at:
                    parsed = model_config.parse(file.read_text(encoding="utf-8"))
                    self._parsed[model] = changed_at, parsed
                found.append(self._parsed[model][1])
        return found


class Catalog:
    """The models of one Triton. Requests wait for those that are away and come back."""

    def __init__(self, triton: Triton, retries: RetryCoordinator, repository: Repository) -> None:
        self._triton, self._retries, self._repository = triton, retries, repository
        self._models: dict[str, ServedModel] = {}
        self._seen_at_s: dict[str, float] = {}  # by name, when it was there last
        self._own_names: dict[str, str] = {}  # of aliases, also while their models are loaded again
        self._elsewhere: dict[str, str] = {}  # the tasks of models that no path here is for
        self._read_at_s: float | None = None
        self._was_loading_at_s = -math.inf  # when a model was, for the last time
        self._reading = asyncio.Lock()

    async def models(self, good_for_s: float = _GOOD_FOR_S) -> dict[str, ServedModel]:
        """The models by name, read ``good_for_s`` ago at most. Asks again while tritonserver is
        away and will be started again. Raises ApiError.
        """
        ends_at_s = time.monotonic() + WAIT_S
        while True:
            try:
                await self._read_if_older(good_for_s)
                return self._models
            except ApiError as error:
                is_away = error.message == UNREACHABLE and self._retries.may_come_back
                if not is_away or time.monotonic() > ends_at_s:
                    raise
            await self._retries.change(_ASK_AGAIN_S)

    async def _read_if_older(self, good_for_s: float) -> None:
        if self._is_older_than(good_for_s):
            async with self._reading:
                if self._is_older_than(good_for_s):  # no other request has read them
                    await self._read()

    def _is_older_than(self, age_s: float) -> bool:
        return self._read_at_s is None or time.monotonic() - self._read_at_s >= age_s

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
        if found is None and (why := self._retries.why_loading(model)):
            self._was_loading_at_s = time.monotonic()
            raise model_is_loading(name, why)
        if found is None and time.monotonic() - self._was_loading_at_s < _ASKED_AGAIN_S:
            found = _of_name(name, await self.models(0.0))  # it may be ready since
        if found is None and (told := self._retries.not_ready().get(model)):
            text = f"model: '{name[:100]}' is not ready: {told.failure or told.reason}"
            raise ApiError(503, text, "model", stays=told.state.is_lost)
        if found is None and tasks and name in self._elsewhere:
            path = f"ask Triton's own HTTP port for it: POST /v2/models/{name}/infer"
            raise of_field("model", f"'{name}' is for the task {self._elsewhere[name]}; {path}")
        if found is None:
            raise model_not_found(name, self._named(tasks))
        if tasks and found.task not in tasks:
            served = ", ".join(self._named(tasks)) or "none, no such model is ready"
            here = f"allowed here ({', '.join(tasks)}): {served}"
            text = f"'{name[:100]}' is a {found.task} model, {here}"
            raise of_field("model", text, 404, "model_not_found")
        return found

    def _only_one(self, models: Mapping[str, ServedModel], tasks: Sequence[str]) -> ServedModel:
        own = (one for one in models.values() if not one.adapter and not one.alias_of)
        found = [one for one in own if one.task in tasks]
        if len(found) != 1:
            allowed = f"one of {', '.join(self._named(tasks))}" if found else "none is ready"
            raise bad_field("model", "none", allowed)
        return found[0]

    async def changed(self, model: ServedModel) -> ServedModel | None:
        """The model as it is now, if it has changed since; else None. Raises ApiError."""
        found = (await self.models(_MISSES_GOOD_FOR_S)).get(model.name)
        same = found == model or (found is not None and found.task != model.task)
        return None if same else found

    def _named(self, tasks: Sequence[str]) -> list[str]:
        return sorted(n for n, model in self._models.items() if not tasks or model.task in tasks)

    def forget(self) -> None:
        """The next request reads the models anew."""
        self._read_at_s = None

    async def _read(self) -> None:
        ready: Sequence[Any] = ()
        try:
            names = await self._triton.ready_models()
            ready = await asyncio.gather(*map(self._triton.config, names))
        except ApiError as error:
            # A Triton that is busy loading can be slow to tell; most likely they are the same. One
            # that has died comes back with them.
            if self._models and (error.status == 504 or self._retries.may_come_back):
                return
            if not (self._retries.may_come_back and self._coming()):
                raise
        configs = list(filter(None, ready))
        are_ready = {config.name for config in configs}
        configs += (config for config in self._coming() if config.name not in are_ready)
        found = list[ServedModel]()
        for model in filter(None, map(served_model, configs)):
            now = self._repository.adapters(model.triton_name) if model.takes_adapters else None
            found += under_all_names(model if now is None else replace(model, adapters=now))
        # Aliases first: a model's own name stands above them.
        found.sort(key=lambda one: one.alias_of is None)
        models = {one.name: one for one in found if one.task in OPENAI_TASKS}
        lost, now_s = self._lost(models), time.monotonic()
        seen_at_s = {name: self._seen_at_s[name] for name in lost}
        self._models = {**lost, **models}
        self._seen_at_s = {**seen_at_s, **dict.fromkeys(models, now_s)}
        self._own_names.update((one.name, one.alias_of) for one in found if one.alias_of)
        self._elsewhere = {one.name: one.task for one in found if one.task not in OPENAI_TASKS}
        self._read_at_s = now_s

    def _coming(self) -> list[Any]:
        return self._repository.configs(self._retries.coming())

    def _lost(self, models: Collection[str]) -> dict[str, ServedModel]:
        """Models that are gone though they are to be served: their death is not known yet."""
        served = (self._retries.may_come_back and served_models(self._repository.folder)) or ()
        since_s = time.monotonic() - NOTICED_S
        return {
            name: one
            for name, one in self._models.items()
            if name not in models and self._seen_at_s[name] > since_s and one.entry in served
        }


def _of_name(name: str, models: Mapping[str, ServedModel]) -> ServedModel | None:
    """The model of that name; or the adapter, by its own name where only one model has it."""
    if name in models:
        return models[name]
    found = [model for model in models.values() if model.adapter == name]
    return found[0] if len(found) == 1 else None
