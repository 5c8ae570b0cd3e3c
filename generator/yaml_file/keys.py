"""Reads a map in YAML into a dataclass, whose annotations declare once what each key may hold:
pydantic checks by them, and describes them in JSON Schema. Every mistake is reported at the line
and column of its node. pydantic is imported where a value is checked.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, TypeAlias, TypeVar

from generator.yaml_file.nodes import Key, Node, Report, did_you_mean, show

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

INT32_MAX = 2**31 - 1
UINT64_MAX = 2**64 - 1
MAX_TEXT = 4096
T = TypeVar("T")
Place: TypeAlias = "tuple[str | int, ...]"
# A mistake's text about the value: "got 3, expected ..."; "got 3, ..."; nothing; nothing, and it is
# the key that is wrong.
EXPECTED, GOT, SAID, OF_KEY = "expected", "got", "said", "of_key"
_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
_LINK = re.compile(r"\[(.+?)\]\(.*?\)")
_MISSING = "missing"  # pydantic's own word; Keys reports these itself


class Mistake(NamedTuple):
    """``place`` leads to the value that is wrong, ``beside`` to another whose line the text ends
    in.
    """

    text: str
    form: str = SAID
    place: Place = ()
    beside: Place | None = None

    def below(self, place: Place) -> Mistake:
        """Rebases the mistake on a value that has this one at ``place``."""
        beside = None if self.beside is None else (*place, *self.beside)
        return self._replace(place=(*place, *self.place), beside=beside)


class Refused(ValueError):  # noqa: N818, the mistakes are what it says
    def __init__(self, *mistakes: Mistake) -> None:
        super().__init__()
        self.mistakes = mistakes


def refused(text: str, form: str = EXPECTED) -> Refused:
    return Refused(Mistake(text, form))


def key(default: Any, about: str, shown: str | None = None) -> Any:
    """A field of ``Keys``: its default (a type is called for one), its line in the documentation,
    and the default's words there, if it is not a value.
    """
    made: Any = {"default_factory" if isinstance(default, type) else "default": default}
    return field(**made, metadata={"about": about, "shown": shown})


class Keys:
    """The base of a map's dataclass. ``expected`` describes such a map, ``needs`` the values of
    required keys; ``gone`` has removed keys, and what to use instead.
    """

    expected: ClassVar[str] = ""
    needs: ClassVar[Mapping[str, str]] = MappingProxyType({})
    gone: ClassVar[Mapping[str, str]] = MappingProxyType({})

    def mistakes(self) -> Iterable[Mistake]:
        return ()

    @classmethod
    def names(cls, value: Mapping[str, Any]) -> Mapping[str, bool]:  # noqa: ARG003, some look
        """The keys that a map may have, and whether each must be there."""
        return key_names(cls)

    @classmethod
    def unknown(cls, name: str, known: Collection[str]) -> str:
        if name in cls.gone:
            return f"is no longer a key: {cls.gone[name]}"
        if "token" in name.lower() and "tokens" not in name.lower():
            hint = "; secrets don't belong in this file: set HF_TOKEN in the environment"
        else:
            hint = did_you_mean(name, known, "keys")
        return f"unknown key{hint}"

    @classmethod
    def _read(cls, value: Any, handler: Callable[[Any], Any]) -> Any:
        if not isinstance(value, dict):
            raise refused(cls.expected or f"a map with {', '.join(key_names(cls))}")
        names = cls.names(value)
        others = ((name, cls.unknown(name, names)) for name in value if name not in names)
        found = [Mistake(text, OF_KEY, (name,)) for name, text in others if text]
        for name, is_required in names.items():
            if is_required and name not in value:
                needs = f": {cls.needs[name]}" if name in cls.needs else ""
                found.append(Mistake(f"missing key '{name}'{needs}"))
        known = {name: child for name, child in value.items() if name in names}
        return _joined(found, lambda: handler(known), lambda made: made.mistakes())

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        inner = {**handler.resolve_ref_schema(handler(source))}
        ref = inner.pop("ref", None)  # of what checks the map too, wherever it is used
        return _core().no_info_wrap_validator_function(cls._read, inner, ref=ref)

    @classmethod
    def __get_pydantic_json_schema__(cls, checked: Any, handler: Any) -> Any:
        found = handler(checked)
        inner = handler.resolve_ref_schema(found)
        inner["additionalProperties"] = False
        for one in dataclasses.fields(cls):  # type: ignore[arg-type]
            if about := one.metadata.get("about"):
                inner["properties"][one.name]["description"] = _LINK.sub(r"\1", about)
        return found


def key_names(kind: Any) -> Mapping[str, bool]:
    return _key_names(kind)


@lru_cache
def _key_names(kind: Any) -> Mapping[str, bool]:
    missing = dataclasses.MISSING
    return {
        field.name: field.default is missing and field.default_factory is missing
        for field in dataclasses.fields(kind)
        if field.init
    }


def read(kind: type[T], node: Node, report: Report, base: Path | None = None) -> T | None:
    """Reports the node's mistakes, and returns None where it has any. Paths start from ``base``."""
    try:
        found: T = _checked(kind, plain(node), base)
    except Refused as error:
        _report(error, node, report)
        return None
    return found


def read_rest(
    kind: type[T], node: Node, report: Report, base: Path | None = None
) -> tuple[T, set[str]]:
    """Reads a map whose keys all have defaults; wrong keys get theirs, and are returned too."""
    given = plain(node)
    try:
        return _checked(kind, given, base), set()
    except Refused as error:
        _report(error, node, report)
        wrong = {str(one.place[0]) for one in error.mistakes if one.place}
    known = given if isinstance(given, dict) else {}
    return _checked(kind, {k: v for k, v in known.items() if k not in wrong}, base), wrong


def problem(kind: Any, value: object, base: Path | None = None) -> str:
    report, node = Report(), Node(value, 0, 0, written=str(value))  # type: ignore[arg-type]
    read(kind, node, report, base)
    return report.problems[0].message if report.problems else ""


def plain(node: Node, changes: Mapping[tuple[int, int], Any] = MappingProxyType({})) -> Any:
    """The tree's values without their places; ``changes`` has others for lists and scalars, by line
    and column.
    """
    if isinstance(node.value, dict):
        return {key.name: plain(child, changes) for key, child in node.value.items()}
    if changes and (node.line, node.column) in changes:
        return changes[node.line, node.column]
    if isinstance(node.value, list):
        return [plain(child, changes) for child in node.value]
    return node.value


def json_schema(kind: Any) -> dict[str, Any]:
    from pydantic.json_schema import GenerateJsonSchema

    class WithoutTitles(GenerateJsonSchema):
        def field_title_should_be_set(self, _schema: Any) -> bool:
            return False

    return _adapter(kind).json_schema(schema_generator=WithoutTitles)


def _core() -> Any:
    """Imports pydantic's schema functions, late as all of pydantic."""
    from pydantic_core import core_schema

    return core_schema


@lru_cache(maxsize=256)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    given = os.environ.get(_PLUGINS)
    os.environ[_PLUGINS] = "__all__"  # or it reads the metadata of every package there is
    try:
        return TypeAdapter(kind)
    finally:
        del os.environ[_PLUGINS]
        if given is not None:
            os.environ[_PLUGINS] = given


def _checked(kind: Any, value: object, base: Path | None) -> Any:
    return _joined([], lambda: _adapter(kind).validate_python(value, context=base))


def _joined(
    found: list[Mistake],
    made: Callable[[], T],
    rules: Callable[[T], Iterable[Mistake]] = lambda _: (),
) -> T:
    """Raises Refused with the mistakes ``found`` before, of making it, and of its ``rules``."""
    from pydantic_core import ValidationError

    try:
        value = made()
    except ValidationError as error:
        raise Refused(*found, *_mistakes(error)) from None
    if found := [*found, *rules(value)]:
        raise Refused(*found)
    return value


def _mistakes(error: ValidationError) -> Iterator[Mistake]:
    for one in error.errors(include_url=False, include_input=False):
        inner = one.get("ctx", {}).get("error")
        if isinstance(inner, Refused):
            yield from (mistake.below(one["loc"]) for mistake in inner.mistakes)
        elif one["type"] != _MISSING:
            yield Mistake(one["msg"], one["type"], one["loc"])


def _report(error: Refused, node: Node, report: Report) -> None:
    for text, form, place, beside in error.mistakes:
        key, value = node_at(node, place)
        if beside is not None:
            text += f" in line {node_at(node, beside)[1].line}"
        got = "got an empty list" if value.value == [] else f"got {show(value)}"
        messages = {EXPECTED: f"{got}, expected {text}", GOT: f"{got}, {text}"}
        report.add(key if form == OF_KEY and key else value, messages.get(form, text))


def node_at(node: Node, place: Place) -> tuple[Key | None, Node]:
    """The node at a place, with its key; the last on the way that is there."""
    key = None
    for part in place:
        if isinstance(node.value, dict):
            found = [item for item in node.value.items() if item[0].name == part]
            if not found:
                break
            ((key, node),) = found
        elif isinstance(node.value, list) and isinstance(part, int):
            key, node = None, node.value[part]
    return key, node


@dataclass(frozen=True)
class _Kind:
    expected: str
    made: Callable[[], Any]

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> Any:
        return _core().custom_error_schema(
            self.made(), custom_error_type=EXPECTED, custom_error_message=self.expected
        )


def whole(least: int | None = None, most: int | None = None, unit: str | None = None) -> _Kind:
    expected = f"a whole number{_range(least, most)}{_unit(unit)}"
    return _Kind(expected, lambda: _core().int_schema(ge=least, le=most, strict=True))


def number(
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    unit: str | None = None,
) -> _Kind:
    lower = f" above {above}" if above is not None else ""
    limits = {"ge": least, "le": most, "gt": above, "strict": True, "allow_inf_nan": False}
    expected = f"a number{lower}{_range(least, most)}{_unit(unit)}"
    return _Kind(expected, lambda: _core().float_schema(**limits))


def one_of(*allowed: object, or_else: str = "") -> _Kind:
    expected = f"one of {', '.join(map(str, allowed))}{or_else}"
    return _Kind(expected, lambda: _core().literal_schema([*allowed]))


true_or_false = _Kind("true or false", lambda: _core().bool_schema(strict=True))
Flag = Annotated[bool, true_or_false]


@dataclass(frozen=True)
class Text:
    """Text without control characters but those ``allowed``, that matches ``pattern``."""

    expected: str
    pattern: str = ""
    may_be_empty: bool = False
    allowed: str = ""

    def read(self, value: object) -> str:
        if not isinstance(value, str):
            quote = "; quote it" if isinstance(value, int | float) else ""
            raise refused(f"{self.expected}{quote}")
        if not (value or self.may_be_empty) or (
            self.pattern and not re.fullmatch(self.pattern, value)
        ):
            raise refused(self.expected)
        if len(value) > MAX_TEXT:
            raise refused(f"got {len(value)} characters, expected at most {MAX_TEXT}", SAID)
        if not value.isprintable() and any(
            unicodedata.category(one) in ("Cc", "Cs") for one in value if one not in self.allowed
        ):
            raise refused(f"{self.expected}, without control characters")
        return value

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> Any:
        return _core().no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, _checked: Any, _handler: Any) -> Any:
        pattern = {"pattern": f"^({self.pattern})$"} if self.pattern else {}
        return {"type": "string", **({} if self.may_be_empty else {"minLength": 1}), **pattern}


@dataclass(frozen=True)
class _Container:
    kind: type
    expected: str
    check: Callable[[Any], Iterable[Mistake]]
    described: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def _read(self, value: Any, handler: Callable[[Any], Any]) -> Any:
        if not isinstance(value, self.kind):
            raise refused(self.expected)
        return _joined([*self.check(value)], lambda: handler(value))

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return _core().no_info_wrap_validator_function(self._read, handler(source))

    def __get_pydantic_json_schema__(self, checked: Any, handler: Any) -> Any:
        return {**handler(checked), **self.described}


def listed(
    expected: str,
    most: int | None = None,
    unit: str = "items",
    unique: bool = True,
    least: int = 1,
    by: tuple[str, ...] = (),
) -> _Container:
    """A list; if ``unique``, no two items are alike, nor two maps under a key of ``by``, case
    aside.
    """

    def check(value: list[Any]) -> Iterator[Mistake]:
        if not value:
            raise refused(expected)
        if len(value) < least:
            yield Mistake(f"got {len(value)}, expected {expected}")
        if most is not None and len(value) > most:
            yield Mistake(f"got {len(value)} {unit}, expected at most {most}")
        seen: set[str] = set()
        for place, item in enumerate(value) if unique else ():
            if repr(item) in seen:
                yield Mistake("which is in the list already", GOT, (place,))
            seen.add(repr(item))
        for name in by:
            of_items = [item.get(name) if isinstance(item, dict) else None for item in value]
            yield from repeated(of_items, name)

    return _Container(list, expected, check, {"minItems": least, "uniqueItems": unique})


def repeated(values: Iterable[object], key: str) -> Iterator[Mistake]:
    """Yields values of ``key`` that two maps of a list have, whatever the case."""
    first: dict[str, int] = {}
    for place, value in enumerate(values):
        other = place if value is None else first.setdefault(str(value).lower(), place)
        if other != place:
            yield Mistake(f"already the '{key}'", GOT, (place, key), (other, key))


def mapped(expected: str, check: Callable[[Any], Iterable[Mistake]] = lambda _: ()) -> _Container:
    return _Container(dict, expected, check)


def _json_mistakes(value: object, place: Place = ()) -> Iterator[Mistake]:
    if isinstance(value, dict | list):
        items: Iterable[tuple[Any, Any]]
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for part, child in items:
            yield from _json_mistakes(child, (*place, part))
        return
    is_wide = isinstance(value, int) and abs(value) <= UINT64_MAX
    try:
        if isinstance(value, str):
            Text("text", may_be_empty=True, allowed="\n\t").read(value)
        elif isinstance(value, int | float) and not is_wide and not math.isfinite(value):
            raise refused("a number")
    except OverflowError:
        yield Mistake("a number", EXPECTED, place)
    except Refused as error:
        yield error.mistakes[0].below(place)


# A map of JSON values, whose keys another program defines.
AnyMap = Annotated[dict[str, Any], mapped("a map", _json_mistakes)]


@dataclass(frozen=True)
class As:
    """The written value is of another kind than the value that is made of it."""

    kind: Any

    def __get_pydantic_core_schema__(self, _source: Any, handler: Any) -> Any:
        return handler.generate_schema(self.kind)


@dataclass(frozen=True)
class After:
    change: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return _core().no_info_after_validator_function(self.change, handler(source))


@dataclass(frozen=True)
class Found:
    """``find`` looks from a folder for what a checked value names, and raises Refused."""

    find: Callable[[Any, Path], Any]

    def _read(self, value: Any, info: Any) -> Any:
        return self.find(value, info.context)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return _core().with_info_after_validator_function(self._read, handler(source))


@dataclass(frozen=True)
class Before:
    """``change`` makes a shorter form of a value the whole one; ``forms`` are its JSON Schemas."""

    change: Callable[[Any], Any]
    forms: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return _core().no_info_before_validator_function(self.change, handler(source))

    def __get_pydantic_json_schema__(self, checked: Any, handler: Any) -> Any:
        whole = handler(checked)
        return {"anyOf": [*map(dict, self.forms), whole]} if self.forms else whole


def _switched(value: object) -> object:
    if value is None:
        raise refused("true, false or a map")
    return value if not isinstance(value, bool) else {} if value else None


# true: a map's defaults, false: null.
Switch = Before(_switched, ({"type": "boolean"},))


def name_pattern(longest: int) -> str:
    inner = rf"[A-Za-z0-9_.-]{{0,{longest - 2}}}"
    return rf"(?!.*\.\.)[A-Za-z0-9]({inner}[A-Za-z0-9])?"


def plain_name(longest: int) -> Text:
    return Text(
        f"letters (a-z, A-Z), digits, and single _ - . between them, at most {longest} characters",
        name_pattern(longest),
    )


def _range(least: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f" from {least} to {most}"
    if least is not None:
        return f", at least {least}"
    return f", at most {most}" if most is not None else ""


def _unit(unit: str | None) -> str:
    return f" ({unit})" if unit else ""
