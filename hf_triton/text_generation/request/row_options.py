"""The options of each row of a request, as tensors or as parameters, whose numbers may be texts;
``sampling_parameters`` wins over both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.request_parameters import salt_of
from hf_triton.runtime.request.tensors import RequestFields, check_on_timeout, shown, text

from ..sequence.request_options import OPTIONS
from ..sequence.sampling_params import check_range
from ..structured.constraint import constraint_of
from .sampling_json import CONVERSIONS, FIELD, lenient_integer, names_in, read_sampling_parameters

Convert = Callable[[str, Any], Any]
_CHOICE = "choice"  # a list like the others, but an empty text in it is refused
_JSON_ONLY = {name: option.default for name, option in OPTIONS.items() if not option.is_parameter}
_PARAMETERS = [name for name in OPTIONS if name not in _JSON_ONLY]


@dataclass(frozen=True)
class RowFields:
    """The fields of a task's requests: each row has one of ``prompts``, or token ids where it
    ``takes_ids``, ``texts`` beside it, and any number of ``files``. The task's own ``options`` have
    a conversion and a default each.
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


MAX_WORD_BYTES = 256
MAX_ALL_WORDS_BYTES = 64 * 1024
MAX_INPUT_IDS = 2**20  # no model's context is longer by far
_NEVER_TOGETHER = (FIELD, "json_schema", "regex", _CHOICE)
_NO_DATA = (
    "text_input: got every other input too, as perf_analyzer sends them by --string-data; have it "
    'send a prompt: --input-data FILE, with {"data": [{"text_input": ["Once upon a time"]}]}'
)


def read_rows(fields: RequestFields, known: RowFields = CHAT_FIELDS) -> list[dict[str, Any]]:
    """The values of each row by name, with defaults. Raises RequestError."""
    if all(name in fields.inputs for name in _NEVER_TOGETHER):
        raise RequestError(_NO_DATA)
    for given in fields.optional_texts(FIELD):
        # vLLM's own client sends each of them twice; here it wins, whatever the other looks like.
        for name in names_in(given or "{}"):
            fields.parameters.pop(name, None)
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
    cache_salt = salt_of(fields.parameters)
    rows = []
    for index in range(num_rows):
        row = {**_JSON_ONLY, **{name: column[index] for name, column in columns.items()}}
        _check_prompt(row, known, f" in row {index} of the batch" if num_rows > 1 else "")
        row["cache_salt"] = cache_salt
        seed, random_seed = row["seed"], row["random_seed"]
        if None not in (seed, random_seed) and seed != random_seed:
            allowed = f"the same as seed ({seed}), or one of them"
            raise RequestError(f"random_seed: got {random_seed}, allowed: {allowed}")
        row["seed"] = random_seed if seed is None else seed
        row.update(read_sampling_parameters(row["sampling_parameters"] or "{}"))
        check_range("n", num := row["n"])
        if row["best_of"] not in (None, 1, num):
            raise RequestError(f"best_of: got {shown(row['best_of'])}, allowed: 1 or n ({num})")
        check_on_timeout(row["on_timeout"])
        _check_lists(row)
        row["constraint"] = constraint_of(row, may_be_empty=num_rows > 1)
        rows.append(row)
    return rows


def read_option(fields: RequestFields, name: str) -> list[Any]:
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
            raise RequestError(f"{name}: given{where} without messages, which it needs")


def _check_lists(row: Mapping[str, Any]) -> None:
    """Raises RequestError for too long a list: the engine looks at each with every token."""
    for name, option in OPTIONS.items():
        if option.most is None:
            continue
        number, what = len(row[name]), "texts" if option.kind == "texts" else "tokens"
        if number > option.most:
            raise RequestError(f"{name}: got {number} {what}, allowed: at most {option.most}")
        if option.kind != "texts":
            continue
        # A half of a surrogate pair is found when the word is used.
        sizes = [len(word.encode("utf-8", "surrogatepass")) for word in row[name]]
        for size, most, which in (
            (max(sizes, default=0), MAX_WORD_BYTES, ("a text", "each")),
            (sum(sizes), MAX_ALL_WORDS_BYTES, ("texts", "together")),
        ):
            if size > most:
                got = f"got {which[0]} of {size} bytes"
                raise RequestError(f"{name}: {got}, allowed: at most {most} {which[1]}")
