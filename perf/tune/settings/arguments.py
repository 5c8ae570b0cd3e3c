"""``--search`` and ``--fix`` as the user writes them, and the space that they and the model make.

Knows the schema through settings.py; no server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from generator.errors import SpecError, UsageError
from generator.spec.model_spec import ModelSpec
from generator.spec.task_folders import Task
from generator.yaml_file import reading
from generator.yaml_file.schema import did_you_mean
from perf.report.schema import Value
from perf.tune.settings import keys as settings
from perf.tune.settings.space import Dimension, Space

MAX_VALUES = 64
_SYNTAX = {
    "--search": "expected KEY=VALUE,VALUE,... or KEY=LOW:HIGH (doubling) or KEY=LOW:HIGH:STEP",
    "--fix": "expected KEY=VALUE",
}


def make_space(
    spec: ModelSpec,
    task: Task,
    searched: Iterable[str],
    fixed: Iterable[str],
    worth_trying: Mapping[str, Iterable[Value]],
) -> Space:
    """The values to try: those of ``--search`` where there are any, else ``worth_trying``.

    Raises UsageError, naming the argument and the key, and what is allowed.
    """
    names = {settings.short(key): key for key in settings.tunable_keys(spec, task)}

    def read(flag: str, arguments: Iterable[str]) -> dict[str, list[Value]]:
        """Values by key."""
        found: dict[str, list[Value]] = {}
        for argument in arguments:
            name, equals, text = argument.partition("=")
            where, name = f"{flag} {name.strip()}", name.strip()
            if not equals or not text.strip():
                raise UsageError(f"{flag} {argument}: {_SYNTAX[flag]}")
            if name not in names and name not in names.values():
                raise UsageError(_unknown(flag, name, names, spec))
            key = names.get(name, name)
            if key in found:
                raise UsageError(f"{where}: given twice")
            found[key] = _values(where, key, text, task, may_be_many=flag == "--search")
        return found

    wanted = read("--search", searched)
    fixes = {key: values[0] for key, values in read("--fix", fixed).items()}
    for key in wanted.keys() & fixes.keys():
        raise UsageError(f"--fix {settings.short(key)}: is also in --search; it can be one of them")
    tried = wanted or {key: [*values] for key, values in worth_trying.items()}
    now = settings.current(spec, [*tried, *fixes])
    dimensions = (Dimension.of(key, v, now[key]) for key, v in tried.items() if key not in fixes)
    varied = tuple(each for each in dimensions if len(each.values) > 1)
    if not varied:
        raise UsageError(
            f"model '{spec.name}': there is one way to set this, and nothing to choose; "
            f"--search takes {', '.join(names)}"
        )
    kept = [each.key for each in varied] + [*fixes]
    return Space(varied, {key: now[key] for key in kept}, fixes)


def _unknown(flag: str, name: str, names: Mapping[str, str], spec: ModelSpec) -> str:
    if name == settings.INSTANCES:
        return (
            f"{flag} {name}: model '{spec.name}' has a device_map or several groups, so "
            "its instances are not one number"
        )
    return f"{flag}: unknown key '{name}' for task {spec.task}{did_you_mean(name, names, 'keys')}"


def _values(where: str, key: str, text: str, task: Task, *, may_be_many: bool) -> list[Value]:
    if may_be_many and ":" in text:
        values = [*_range(where, text)]
    else:
        values = [_value(where, word) for word in (text.split(",") if may_be_many else [text])]
    if len(values) > MAX_VALUES:
        raise UsageError(f"{where}: got more than {MAX_VALUES} values, expected fewer")
    for message in (settings.problem(key, value, task) for value in values):
        if message:
            raise UsageError(f"{where}: {message}")
    return values


def _value(where: str, text: str) -> Value:
    """As models.yaml would read it."""
    word = text.strip()
    if word in ("null", "~"):
        return None
    try:
        value = reading.parse(word.encode(), where).value if word else ""
    except SpecError:
        value = word
    if isinstance(value, list | dict) or value == "":
        raise UsageError(f"{where}: got '{word}', expected single values with commas between them")
    return value


def _range(where: str, text: str) -> Iterator[Value]:
    """``1:64`` and ``1:64:x2`` double from 1 to 64, ``1:64:4`` goes in steps of 4; both ends are
    values to try.
    """
    *ends, step = [*text.split(":"), "x2"] if text.count(":") == 1 else text.split(":")
    is_factor = step.strip().startswith("x")
    numbers = [_value(where, word) for word in (*ends, step.strip().removeprefix("x"))]
    if len(numbers) != 3 or not all(type(each) in (int, float) for each in numbers):
        raise UsageError(f"{where}: got '{text}', {_SYNTAX['--search']}")
    low, high, step_size = (float(each) for each in numbers if isinstance(each, int | float))
    if low > high or (step_size <= 1 and is_factor) or step_size <= 0 or (is_factor and low < 0):
        raise UsageError(f"{where}: got '{text}', an empty range; {_SYNTAX['--search']}")
    are_whole = all(type(each) is int for each in numbers)
    number = low
    for _ in range(MAX_VALUES + 1):
        if number >= high:
            break
        yield int(number) if are_whole else number
        after = number * step_size if is_factor else number + step_size
        number = after if after > number else min(1.0, high)  # 0 can't be doubled
    yield int(high) if are_whole else high
