"""What is sent to a target: perf_analyzer's input file, of texts of the lengths that a scenario
asks for, or of a sample by the model's task, or of the user's own file.
"""

from __future__ import annotations

import json
import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from generator.errors import PerfError
from generator.render.curl_lines import infer_input
from generator.render.model_folder import VALUES_FILE
from generator.render.sample_requests import sample_request, tokenizer_files
from generator.spec.triton_models import ENGINE_SUFFIX
from generator.yaml_file.regular_file import read_regular
from perf.sweep.requests.targets import Target
from perf.sweep.scenario.model import FLAT_JSON, STREAMS, Inputs
from perf.sweep.scenario.ranges import Lengths

_COMMON = (
    "the of and to in is it you that he was for on are with as his they be at one have this from "
    "by hot word but what some we can out other were all there when up use your how said an each "
    "she which do their time if will way about many then them write would like so these her long "
    "make thing see him two has look more day could go come did number sound no most people my "
    "over know water than call first who may down side been now find any new work part take get "
    "place made live where after back little only round man year came show every good me give our "
    "under name very through just form much great think say help low line before turn cause same "
    "mean differ move right boy old too does tell sentence set three want air well also play small "
    "end put home read hand port large spell add even land here must big high such follow act why "
    "ask men change went light kind off need house picture try us again animal point mother world"
)
_WORDS = tuple(_COMMON.split())
_FILLERS = ("a", ".", ",", "I", "it", "!", "?", "no")

Count = Callable[[str], int]

# Caller number c begins with entry c and goes on by as many entries as there are callers: with a
# number of entries that has no factor in common with theirs, each sees all of them.
_NUM_ENTRIES = (127, 61, 31, 13)
_MOST_LENGTH_TOGETHER = 100_000  # tokens or words in one file
_MOST_BYTES = 256 * 2**20
_USUAL = Lengths((32,))
_TEXT_INPUTS = ("text_input", "context", "inputs", "text")
_LENGTH_INPUTS = ("max_tokens", "min_tokens")
_TYPE_STRING = 13  # inference.DataType, model_config.proto

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Requests:
    """The content of one input file, and what it is in words for the report."""

    entries: Sequence[Entry]  # input name -> values, as /infer takes them
    prompt: str = ""  # such as 32, 8-64, or 32 words
    output: str = ""
    note: str = ""

    def content(self, endpoint: str) -> str:
        flat = endpoint in FLAT_JSON
        entries = [{"payload": [_flat(entry)]} if flat else entry for entry in self.entries]
        return json.dumps({"data": entries}) + "\n"

    def bodies(self, target: Target) -> list[str]:
        """What each request posts to the target, in JSON."""
        if target.endpoint in FLAT_JSON:
            return [json.dumps(_flat(entry)) for entry in self.entries]
        size = target.config.max_batch_size
        tensors = (
            [infer_input(target.inputs[name], value, size) for name, value in entry.items()]
            for entry in self.entries
        )
        return [json.dumps({"inputs": inputs}) for inputs in tensors]


class RequestError(PerfError):
    """A scenario's input does not fit a model; its text says how."""


def requests_of(target: Target, inputs: Inputs, repository: Path, seed: int) -> list[Requests]:
    """One for each combination of prompt and output lengths. Raises RequestError, PerfError."""
    if inputs.file is not None:
        return [_of_file(Path(inputs.file), target)]
    _check_names(target, inputs)
    base = {**_sample(target, repository), **inputs.tensors}
    usual = (_USUAL,) if "max_tokens" in target.inputs else ()
    if inputs.output and not usual:
        raise RequestError(f"model '{target.model}' has no input max_tokens for output_tokens")
    prompts = inputs.prompt or inputs.words or usual
    if not prompts:
        return [Requests([_listed(base)])]
    tokenizer = None if inputs.words else _tokenizer(target, inputs, repository)
    name, count = _text_input(target, base), counter(tokenizer) if tokenizer else None
    return [
        _of_lengths(target, prompt, output, random.Random(seed), Texts(seed, count), base, name)
        for prompt, output in product(prompts, inputs.output or usual or (None,))
    ]


def _of_lengths(
    target: Target,
    prompt: Lengths,
    output: Lengths | None,
    chance: random.Random,
    texts: Texts,
    base: Entry,
    name: str,
) -> Requests:
    """``base`` with texts of these lengths as the input ``name``."""
    most = _MOST_LENGTH_TOGETHER // prompt.longest
    count = next((one for one in _NUM_ENTRIES if one <= most), _NUM_ENTRIES[-1])
    prompts = prompt.draw(count, chance)
    outputs = output.draw(count, chance) if output else [None] * count
    entries = [
        _listed({**base, name: texts.draw(length), **_asked(target, asked)})
        for length, asked in zip(prompts, outputs, strict=True)
    ]
    words = "" if texts.unit == "tokens" else " words"
    note = f"prompts for '{target.name}' are counted in words" if words else ""
    return Requests(entries, f"{prompt.label}{words}", output.label if output else "", note)


def _asked(target: Target, output: int | None) -> dict[str, Any]:
    """Exactly so many tokens, where the model can be told so; and to say how many there were."""
    wanted: dict[str, Any] = {}
    if output is not None:
        wanted |= {name: output for name in _LENGTH_INPUTS if name in target.inputs}
    if "return_num_output_tokens" in target.inputs:
        wanted["return_num_output_tokens"] = True
    if "return_finish_reason" in target.inputs and target.endpoint == "grpc-stream":
        wanted["return_finish_reason"] = True  # what tells an answer's end from an empty response
    if "stream" in target.inputs:
        wanted["stream"] = target.endpoint in STREAMS
    return wanted


def _check_names(target: Target, inputs: Inputs) -> None:
    unknown = [name for name in inputs.tensors if name not in target.inputs]
    if unknown:
        known = ", ".join(target.inputs)
        raise RequestError(f"model '{target.model}' has no input {unknown[0]}; it has: {known}")


def _sample(target: Target, repository: Path) -> dict[str, Any]:
    # The folder that knows the model's options: of a model that streams, the engine's.
    engine = target.name.removesuffix(ENGINE_SUFFIX) + ENGINE_SUFFIX
    home = engine if (repository / engine / VALUES_FILE).is_file() else target.model
    try:
        return dict(sample_request(repository, home, target.config))
    except (OSError, ValueError, KeyError):  # a model of this task that is not generated here
        return {}


def _text_input(target: Target, base: Entry) -> str:
    declared = target.inputs
    for name in (*_TEXT_INPUTS, *base):
        if name in declared and declared[name].data_type == _TYPE_STRING:
            return name
    raise RequestError(
        f"model '{target.model}' takes no text, so prompts have no length; leave that out, or "
        "give a file in perf_analyzer's own form as input.file"
    )


def _tokenizer(target: Target, inputs: Inputs, repository: Path) -> Path | None:
    """None where tokens can't be counted here: then words are."""
    if inputs.tokenizer is not None:
        return Path(inputs.tokenizer)
    name = target.name.removesuffix(ENGINE_SUFFIX)
    for folder in (repository / (name + ENGINE_SUFFIX), repository / name):
        try:
            found = tokenizer_files(folder)
        except (OSError, ValueError, KeyError):
            continue
        if found:
            return found[-1]
    return None


def _listed(entry: Entry) -> Entry:
    return {name: one if isinstance(one, list) else [one] for name, one in entry.items()}


def _flat(entry: Entry) -> Entry:
    """An entry as /generate takes it: single values without a list."""
    plain = {name: one["content"] if isinstance(one, dict) else one for name, one in entry.items()}
    return {name: one[0] if len(one) == 1 else one for name, one in _listed(plain).items()}


def _of_file(file: Path, target: Target) -> Requests:
    """The user's own entries. Raises PerfError for a file that is not of perf_analyzer's form."""
    form = 'expected perf_analyzer\'s form, such as {"data": [{"INPUT": [1, 2]}]}'
    try:
        entries = json.loads(read_regular(file, _MOST_BYTES).decode("utf-8"))["data"]
    except OSError as error:
        raise PerfError(f"{file}: can't be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PerfError(f"{file}: {error}; {form}") from None
    if not isinstance(entries, list) or not entries:
        raise PerfError(f"{file}: holds no entries; {form}")
    if isinstance(entries[0], list):  # sequences: here each request stands for itself
        entries = [entry for sequence in entries for entry in sequence]
    for entry in entries:
        _check_entry(file, entry, target, form)
    return Requests(entries)


def _check_entry(file: Path, entry: Any, target: Target, form: str) -> None:
    if not isinstance(entry, dict):
        raise PerfError(f"{file}: an entry is {json.dumps(entry)[:60]}; {form}")
    unknown = [name for name in entry if name not in target.inputs]
    if unknown:
        known = ", ".join(target.inputs)
        raise RequestError(
            f"{file.name} has an input {unknown[0]}, model '{target.model}' has: {known}"
        )
    missing = [n for n, one in target.inputs.items() if not one.optional and n not in entry]
    if missing:
        raise RequestError(f"{file.name} lacks the input {missing[0]} of model '{target.model}'")
    is_flat = target.endpoint in FLAT_JSON
    if is_flat and any(isinstance(v, dict) and "content" not in v for v in entry.values()):
        raise RequestError(f"{file.name} has b64 content, which {target.endpoint} can't carry")


class Texts:
    """Draws texts; ``count`` gives a text's length, in ``unit``.

    Lengths are tokens where a tokenizer.json is at hand, else words. Everything follows from the
    seed.
    """

    def __init__(self, seed: int, count: Count | None = None) -> None:
        self._chance = random.Random(seed)
        self._count = count
        self.unit = "tokens" if count else "words"

    def draw(self, length: int) -> str:
        """A text of ``length``, or where the tokenizer allows no such one, just below it."""
        words, count = self._chance.choices(_WORDS, k=max(1, length)), self._count
        if count is None:
            return " ".join(words)
        lengths = range(1, len(words))  # of texts that are longer by a word: one word is kept
        fitting = bisect_right(lengths, length, key=lambda num: count(" ".join(words[: num + 1])))
        return _filled(" ".join(words[: fitting + 1]), length, count)


def _filled(text: str, length: int, count: Count) -> str:
    """Grown token by token with the shortest that there is."""
    while (now := count(text)) < length:
        longer = (f"{text} {one}" for one in (*_FILLERS, *_WORDS))
        grown = next((one for one in longer if now < count(one) <= length), None)
        if grown is None:
            break
        text = grown
    return text


def counter(tokenizer_file: Path) -> Count:
    """Counts as the model does: special tokens that stand around a text are part of it.

    Raises PerfError for a file that is none. Imports tokenizers.
    """
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    except Exception as error:  # noqa: BLE001, tokenizers raises nothing narrower
        raise PerfError(f"{tokenizer_file}: not a tokenizer.json: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: len(tokenizer.encode(text).ids)
