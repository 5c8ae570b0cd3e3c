"""A model's hooks without a server, for their tests.

::

    from generator.testing_hooks import load_hooks

    def test_texts_are_stripped() -> None:
        hooks = load_hooks("models.yaml", "sentiment")
        request = hooks.preprocess({"text_input": " good "})
        assert request.text("text_input") == "good"
        response = hooks.postprocess({"label": "POSITIVE", "score": 0.9}, request)
        assert hooks.observed("score") == [0.9]

The file is loaded as the server loads it, with the tensors and metrics that the model has there.
Loads no weights and imports neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from generator.errors import ModelError, SpecError
from generator.models_yaml.reading import load_unpinned, named
from generator.render import model_config
from generator.render.model_folder import render_config
from generator.spec.model_source import HooksFile
from generator.spec.model_spec import ModelSpec
from generator.spec.task_folders import find_tasks
from generator.spec.triton_models import triton_models
from hf_triton.hooks import HookRequest, HookResponse
from hf_triton.runtime.hooking.hook_runner import HookFile
from hf_triton.runtime.metrics.observations import Metric, Observations
from hf_triton.runtime.request.declared_tensor import declared_tensors

__all__ = ["HooksUnderTest", "SpecError", "load_hooks"]


class _Recorder(Observations):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        super().__init__(metrics)
        self.seen: list[tuple[str, float, dict[str, str]]] = []

    def observe(self, name: str, value: Any, labels: Mapping[str, Any]) -> None:
        super().observe(name, value, labels)
        self.seen.append((name, float(value), {key: str(one) for key, one in labels.items()}))


class HooksUnderTest:
    """The hooks of one model. What they raise, these methods raise: RequestError for an answer of
    400, HookError for one of 500, whose cause is the hook's own exception.
    """

    def __init__(self, spec: ModelSpec, hooks: HooksFile) -> None:
        """Raises LoadError where the file can't be imported."""
        text = render_config(triton_models(spec)[-1], find_tasks()[spec.task])
        config = model_config.as_dict(model_config.parse(text))
        self._inputs = declared_tensors(config["input"])
        self._outputs = declared_tensors(config["output"])
        self._batched = spec.max_batch_size > 0
        metrics = (
            Metric(name, one.type, one.help or name, one.labels, one.buckets)
            for name, one in spec.metrics.items()
        )
        self._observations = _Recorder(metrics)
        self._file = HookFile(hooks.path, hooks.path.name, self._observations)

    def preprocess(
        self,
        inputs: Mapping[str, Any],
        parameters: Mapping[str, Any] | None = None,
        *,
        num_rows: int = 1,
    ) -> HookRequest:
        """Runs ``preprocess`` on a request with these tensors: arrays, values or flat lists.

        ``num_rows`` is the size of a client's batch, with max_batch_size above 0.
        """
        request = self._request(parameters or {}, num_rows)
        request.update(inputs)
        self._file.run("preprocess", request)
        return request

    def postprocess(
        self,
        outputs: Mapping[str, Any],
        request: HookRequest | None = None,
        *,
        is_final: bool = True,
    ) -> HookResponse:
        """Runs ``postprocess`` on a response with these tensors.

        ``request`` is what ``preprocess`` returned, one without tensors where it is left out.
        """
        asked = self._request({}, 1) if request is None else request
        response = HookResponse({}, self._outputs, asked, is_final=is_final)
        response.update(outputs)
        self._file.run("postprocess", response)
        return response

    def observed(self, name: str, **labels: object) -> list[float]:
        """Returns the values of a metric that had these labels, in their order."""
        wanted = {label: str(value) for label, value in labels.items()}.items()
        seen = (one for one in self._observations.seen if one[0] == name)
        return [value for _, value, given in seen if wanted <= given.items()]

    def _request(self, parameters: Mapping[str, Any], num_rows: int) -> HookRequest:
        rows = num_rows if self._batched else None
        names = tuple(self._outputs)
        return HookRequest({}, self._inputs, rows, parameters=parameters, outputs=names)


def load_hooks(config: str | Path, model: str) -> HooksUnderTest:
    """The hooks of the model of that name in a models.yaml.

    Raises:
        SpecError: models.yaml or the hooks file is wrong; says where.
        ModelError: there is no such model, or it has no hooks.
    """
    spec = named(load_unpinned(Path(config)), model, Path(config))
    if spec.hooks is None:
        raise ModelError(f"model {model!r} has no hooks")
    return HooksUnderTest(spec, spec.hooks)
