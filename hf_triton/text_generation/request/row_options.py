"""The options of each row of a request, as its tensors and parameters say them.

A name means the same as a tensor and as a request parameter, whose number may come as a text;
``sampling_parameters`` wins over both. Ranges of sampling are SamplingParams' own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.deadline import check_on_timeout
from hf_triton.runtime.request.tensors import RequestFields, shown, text

from ..sequence.request_options import OPTIONS
from ..sequence.sampling_params import check_range
from ..structured.constraint import constraint_of
from .limits import MAX_INPUT_IDS, check_lists
from .sampling_json import CONVERSIONS, FIELD, lenient_integer, names_in, read_sampling_parameters

Convert = Callable[[str, Any], Any]
_CHOICE = "choice"  # a list like the others, but an empty text in it is refused
_JSON_ONLY = {name: option.default for name, option in OPTIONS.items() if not option.is_parameter}
_PARAMETERS = [name for name in OPTIONS if name not in _JSON_ONLY]


@dataclass(frozen=True)
class RowFields:
    """The fields of a task's requests: ``prompts``, of which each row has one, or its token ids
    where it ``takes_ids``; the ``texts`` that may stand beside it; ``files``, of which a row has
    any number; and ``options``, a conversion and a default each, beside those of all.
    """

    prompts: tuple[str, ...]
    texts: tuple[str, ...] = ()
    options: Mapping[str, tuple[Convert, Any]] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    takes_ids: bool = False


_IDS = "input_ids"
CHAT_FIELDS = RowFields(
    ("text_input", "messages"), ("tools", "chat_template_kwargs", "lora_name"), takes_ids=True
)


_NEVER_TOGETHER = (FIELD, "json_schema", "regex", _CHOICE)
_NO_DATA = (
    "text_input: got every other input too, as perf_analyzer sends them by --string-data; have it "
    'send a prompt: --input-data FILE, with {"data": [{"text_input": ["Once upon a time"]}]}'
)


def read_rows(fields: RequestFields, known: RowFields = CHAT_FIELDS) -> list[dict[str, Any]]:
    """The values of each row by name, defaults filled in, prompts and choices checked.

    Raises:
        RequestError: names the field, what was got and what is allowed.
    """
    if all(fields.has_tensor(name) for name in _NEVER_TOGETHER):
        raise RequestError(_NO_DATA)
    for given in fields.optional_texts(FIELD):
        # vLLM's own client sends each of them twice; here it wins, whatever the other looks like.
        fields.drop_parameters(names_in(given or "{}"))
    texts = (*known.prompts, *known.texts)
    ids = (_IDS,) if known.takes_ids else ()
    fields.check_parameters((*_PARAMETERS, *known.options, *texts, *ids, *known.files))
    num_rows = fields.count_rows(*known.prompts, *ids, *known.files)
    columns: dict[str, list[Any]] = {
        **{name: fields.optional_texts(name) for name in texts},
        **{name: read_option(fields, name) for name in _PARAMETERS},
        **{name: fields.values(name, *option) for name, option in known.options.items()},
        _IDS: fields.lists(_IDS, lenient_integer, MAX_INPUT_IDS) if ids else [[]] * num_rows,
        **{name: [tuple(row) for row in fields.raw_lists(name)] for name in known.files},
    }
    cache_salt = fields.cache_salt
    rows = []
    for index in range(num_rows):
        row = {**_JSON_ONLY, **{name: column[index] for name, column in columns.items()}}
        _check_prompt(row, known, f" in row {index} of the batch" if num_rows > 1 else "")
        row["cache_salt"] = cache_salt
        row["seed"] = _one_seed(row["seed"], row["random_seed"])
        row.update(read_sampling_parameters(row["sampling_parameters"] or "{}"))
        _check_choices(row)
        check_lists(row)
        row["constraint"] = constraint_of(row, may_be_empty=num_rows > 1)
        rows.append(row)
    return rows


def read_option(fields: RequestFields, name: str) -> list[Any]:
    """What each row says of an option, else its default. Raises RequestError."""
    option = OPTIONS[name]
    if option.kind == "texts":
        return fields.lists(name, text) if name == _CHOICE else fields.text_lists(name)
    return fields.values(name, CONVERSIONS[option.kind], option.default)


def _check_prompt(row: dict[str, Any], known: RowFields, where: str) -> None:
    first, *others = known.prompts
    given = [name for name in (*known.prompts, _IDS) if row[name]]
    if len(given) > 1:
        raise RequestError(f"{' and '.join(given)}: both given{where}, send one of them")
    if not given and not any(row[name] for name in known.files):
        found = "missing" if row[first] is None else "empty"
        instead = f" (or {', '.join(others)})" if others else ""
        raise RequestError(f"{first}: {found}{where}, a text is required{instead}")
    for name in ("tools", "chat_template_kwargs"):
        if row.get(name) and not row["messages"]:
            raise RequestError(f"{name}: given{where} without messages, which it is part of")


def _one_seed(seed: int | None, random_seed: int | None) -> int | None:
    if seed is not None and random_seed is not None and seed != random_seed:
        raise RequestError(
            f"random_seed: got {random_seed}, allowed: the same as seed ({seed}), or one of them"
        )
    return random_seed if seed is None else seed


def _check_choices(row: dict[str, Any]) -> None:
    num = row["n"]
    check_range("n", num)
    if row["best_of"] not in (None, 1, num):
        raise RequestError(f"best_of: got {shown(row['best_of'])}, allowed: 1 or n ({num})")
    check_on_timeout(row["on_timeout"])
