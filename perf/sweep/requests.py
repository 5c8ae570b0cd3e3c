"""Finds which Triton model answers an endpoint, and makes perf_analyzer's input: texts of the
scenario's lengths, a sample for the task, or the user's own file.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from generator.errors import GeneratorError, PerfError
from generator.render import model_config
from generator.render.model_data import newest_json
from generator.render.sample_requests import infer_input, sample_request, tokenizer_files
from generator.spec.triton_models import ENGINE_SUFFIX
from generator.yaml_file.nodes import did_you_mean
from hf_triton.runtime.regular_file import read_regular
from perf.sweep.scenario import FLAT_JSON, STREAMS, Inputs, Lengths, Scenario

_TEXT = (
    "the of and to in is it you that he was for on are with as his they be at one have this from "
    "by hot word but what some we can out other were all there when up use your how said an each "
    "she which do their time if will way about many then them write would like so these her long "
    "make thing see him two has look more day could go come did number sound no most people my "
    "over know water than call first who may down side been now find any new work part take get"
)
_WORDS = tuple(_TEXT.split())
# Caller number c begins with entry c and goes on by as many entries as there are callers: with a
# number of entries that has no factor in common with theirs, each sees all of them.
_NUM_ENTRIES = (127, 61, 31, 13)
_MOST_LENGTH_TOGETHER = 100_000  # tokens or words in one file
_MOST_BYTES = 256 * 2**20
_USUAL = Lengths((32,))
_TEXT_INPUTS = ("text_input", "context", "inputs", "text")
_FILE_INPUTS = ("image", "audio")
_LENGTH_INPUTS = ("max_tokens", "min_tokens")
_FORM = 'expected perf_analyzer\'s form, such as {"data": [{"INPUT": [1, 2]}]}'

ConfigOf = Callable[[str], Any]
"""A model's ModelConfig, None where there is no such model."""
Count = Callable[[str], int]
Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """``name`` is the user's model; ``model`` is the Triton model that answers this endpoint."""

    name: str
    endpoint: str
    model: str
    config: Any  # a ModelConfig

    @property
    def inputs(self) -> dict[str, Any]:
        return {tensor.name: tensor for tensor in self.config.input}

    @property
    def labels(self) -> tuple[str, ...]:
        """The model names under which the server counts the target's work."""
        return tuple(dict.fromkeys((self.name.removesuffix(ENGINE_SUFFIX), self.name, self.model)))


def targets_of(
    scenario: Scenario, config_of: ConfigOf, known: Collection[str]
) -> tuple[list[Target], list[str]]:
    """The Triton models that answer a scenario, and its mistakes that only their configurations
    show; ``config_of`` asks the server or reads the repository, ``known`` are names for hints.
    """
    found, mistakes = list[Target](), list[str]()
    for name in scenario.models:
        config, streaming = (config_of(each) for each in (name, name + ENGINE_SUFFIX))
        if config is None and streaming is None:
            hint = did_you_mean(name, known, "models")
            mistakes.append(f"models: there is no model '{name}'{hint}")
            continue
        usual = ["http-infer"] if _answers_at_once(config) else ["grpc-stream"]
        usual += ["grpc-stream"] if streaming is not None and usual != ["grpc-stream"] else []
        for endpoint in scenario.endpoints or usual:
            streams = endpoint in STREAMS
            picked = streaming if streams and streaming is not None else config
            model = name + ENGINE_SUFFIX if picked is streaming and streams else name
            if _answers_at_once(picked) is streams:
                told = "answers only streams: grpc-stream"
                if streams:
                    told = "does not stream; expected http-infer, http-generate or grpc-infer"
                mistakes.append(f"endpoints: model '{name}' {told}")
                continue
            most = max(picked.max_batch_size, 1)
            if max(scenario.batch_sizes) > most:
                mistakes.append(f"batch_sizes: model '{model}' takes at most {most} in a batch")
            found.append(Target(name, endpoint, model, picked))
    return found, mistakes


def _answers_at_once(config: Any) -> bool:
    return config is not None and not config.model_transaction_policy.decoupled


def of_repository(repository: Path, name: str) -> Any:
    try:
        return model_config.parse((repository / name / "config.pbtxt").read_text(encoding="utf-8"))
    except (OSError, GeneratorError):
        return None


@dataclass(frozen=True)
class Requests:
    """The content of one input file, and its description for the report."""

    entries: Sequence[Entry]  # input name -> values, as /infer takes them
    prompt: str = ""  # such as 32, 8-64, or 32 words
    output: str = ""
    note: str = ""

    def content(self, endpoint: str) -> str:
        flat = endpoint in FLAT_JSON
        entries = [{"payload": [_flat(entry)]} if flat else entry for entry in self.entries]
        return json.dumps({"data": entries}) + "\n"

    def bodies(self, target: Target) -> list[str]:
        if target.endpoint in FLAT_JSON:
            return [json.dumps(_flat(entry)) for entry in self.entries]
        size = target.config.max_batch_size
        tensors = (
            [infer_input(target.inputs[name], value, size) for name, value in entry.items()]
            for entry in self.entries
        )
        return [json.dumps({"inputs": inputs}) for inputs in tensors]


class RequestError(PerfError):
    """A scenario's input does not fit the model; the text says how."""


def requests_of(target: Target, inputs: Inputs, repository: Path, seed: int) -> list[Requests]:
    """One for each combination of lengths, in tokens of the model's tokenizer in the repository,
    else in words. Raises RequestError, PerfError.
    """
    if inputs.file is not None:
        return [_of_file(Path(inputs.file))]
    if unknown := [name for name in inputs.tensors if name not in target.inputs]:
        known = ", ".join(target.inputs)
        raise RequestError(f"model '{target.model}' has no input {unknown[0]}; it has: {known}")
    base = {**_sample(target, repository), **inputs.tensors}
    usual = (_USUAL,) if "max_tokens" in target.inputs else ()
    if inputs.output_tokens and not usual:
        raise RequestError(f"model '{target.model}' has no input max_tokens for output_tokens")
    name = _text_input(target, base)
    if inputs.prompt_tokens and not name:
        raise RequestError(
            f"model '{target.model}' takes no text, so prompts have no length; leave that out, or "
            "give a file in perf_analyzer's own form as input.file"
        )
    prompts = inputs.prompt_tokens or (usual if name else ())
    if not prompts:
        limits: list[tuple[int | None, str]]
        limits = [(one.longest, one.label) for one in inputs.output_tokens] or [(None, "")]
        return [
            Requests([_listed({**base, **_output_inputs(target, longest)})], output=label)
            for longest, label in limits
        ]
    tokenizer = _tokenizer(target, repository)
    count = counter(tokenizer) if tokenizer else None
    unit = "" if count else " words"
    note = f"prompts for '{target.name}' are counted in words" if unit else ""
    found = []
    for prompt, output in product(prompts, inputs.output_tokens or usual or (None,)):
        most = _MOST_LENGTH_TOGETHER // prompt.longest
        number = next((one for one in _NUM_ENTRIES if one <= most), _NUM_ENTRIES[-1])
        lengths, words = random.Random(seed), random.Random(seed)
        drawn = prompt.draw(number, lengths)
        outputs = output.draw(number, lengths) if output else [None] * number
        entries = [
            _listed({**base, name: text, **_output_inputs(target, asked)})
            for text, asked in zip(texts_of(drawn, words, count), outputs, strict=True)
        ]
        of_output = output.label if output else ""
        found.append(Requests(entries, f"{prompt.label}{unit}", of_output, note))
    return found


def _output_inputs(target: Target, output: int | None) -> dict[str, Any]:
    wanted: dict[str, Any] = dict.fromkeys(_LENGTH_INPUTS, output) if output is not None else {}
    wanted["return_num_output_tokens"] = True
    if target.endpoint == "grpc-stream":
        wanted["return_finish_reason"] = True  # tells a final response from an empty one
    wanted["stream"] = target.endpoint in STREAMS
    return {name: value for name, value in wanted.items() if name in target.inputs}


def _home(target: Target, repository: Path) -> str:
    """The folder that knows the model's options: of a model that streams, the engine's."""
    engine = target.name.removesuffix(ENGINE_SUFFIX) + ENGINE_SUFFIX
    return engine if newest_json(repository / engine, "model.json") else target.model


def _sample(target: Target, repository: Path) -> dict[str, Any]:
    try:
        return dict(sample_request(repository, _home(target, repository), target.config))
    except (OSError, ValueError, KeyError):  # a model of this task that is not generated here
        return {}


def _text_input(target: Target, base: Entry) -> str:
    """The input that takes a prompt; "" where the model reads images or sounds alone."""
    declared = target.inputs
    for name in (*_TEXT_INPUTS, *(name for name in base if name not in _FILE_INPUTS)):
        if name in declared and model_config.type_word(declared[name]) == "TYPE_STRING":
            return name
    return ""


def _tokenizer(target: Target, repository: Path) -> Path | None:
    """The tokenizer, or None where lengths are counted in words."""
    try:
        return next(reversed(tokenizer_files(repository / _home(target, repository))), None)
    except (OSError, ValueError, KeyError):
        return None


def _listed(entry: Entry) -> Entry:
    return {name: one if isinstance(one, list) else [one] for name, one in entry.items()}


def _flat(entry: Entry) -> Entry:
    plain = {name: one["content"] if isinstance(one, dict) else one for name, one in entry.items()}
    return {name: one[0] if len(one) == 1 else one for name, one in _listed(plain).items()}


def _of_file(file: Path) -> Requests:
    """The user's entries, which perf_analyzer checks. Raises PerfError for another form."""
    try:
        data = json.loads(read_regular(file, _MOST_BYTES).decode("utf-8"))["data"]
        # A sequence of requests is a list.
        entries = [one for each in data for one in (each if isinstance(each, list) else [each])]
    except OSError as error:
        raise PerfError(f"{file}: can't be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PerfError(f"{file}: {error}; {_FORM}") from None
    if not entries or not all(isinstance(entry, dict) for entry in entries):
        raise PerfError(f"{file}: holds no entries, or others than maps; {_FORM}")
    return Requests(entries)


def texts_of(lengths: Sequence[int], chance: random.Random, count: Count | None) -> list[str]:
    """Texts of so many words or, with ``count``, tokens: of words that add one token each."""
    first, words, own = _WORDS[0], _WORDS, 1
    if count is not None:
        own = count(first)
        words = tuple(word for word in _WORDS if count(f"{first} {word}") == own + 1) or _WORDS
    return [" ".join([first, *chance.choices(words, k=max(0, each - own))]) for each in lengths]


def counter(tokenizer_file: Path) -> Count:
    """Counts tokens as the model does, special ones included. Raises PerfError."""
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    except Exception as error:  # noqa: BLE001, tokenizers raises nothing narrower
        raise PerfError(f"{tokenizer_file}: not a tokenizer.json: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: len(tokenizer.encode(text).ids)
