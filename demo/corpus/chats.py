"""Composes chats as messages: talk, calls of tools and answers in JSON. Knows no chat template.

NUL in an answer turns learning off and on again: what lies between is written by a grammar, where
a request asks for one.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping
from typing import Any

from demo.corpus import words
from demo.corpus.conversations import turns_of
from demo.corpus.inflection import plural
from demo.corpus.sources import sections
from demo.corpus.writer import Writer, capitalised

Chat = dict[str, Any]  # messages, and tools
Message = dict[str, Any]

PARTS = sections("chats.txt")
TALK = [line.split(" | ") for line in PARTS["talk"]]
UNTOLD = [line.split(" | ") for line in PARTS["untold"]]
KINDS = {kind: keys.split(", ") for kind, keys in (line.split(": ") for line in PARTS["kinds"])}
VALUES = dict(line.split(": ", 1) for line in PARTS["values"])
LISTS = ("hobbies", "sounds", "sights", "ingredients", "tags", "cities")
TRUTHS = words.listed("happy, wild, large, open, available, easy, free, paid, rain, sure, done")
NESTED = {"owner": ("name", "age"), "address": ("street", "city")}
# Questions of questions.txt that TALK answers in its own way.
OWN = ("How are you", "What is your n", "Who are you", "How old are", "Can you help", "Tell me a ")
VERBS = words.listed("get, find, check, search, show, look up, read, fetch, book, send, list")
NOUNS = words.listed(
    """weather, time, price, news, song, email, room, flight, train, table, light, music, map,
    calendar, traffic, forecast, temperature, population, exchange rate, stock, recipe, order,
    address, phone number, score, ticket, hotel, restaurant, date, distance, word, user, file"""
)
TEXT_KEYS = words.listed(
    "city, name, place, query, location, title, user, country, text, word, symbol, topic, to, item"
)
NUMBER_KEYS = words.listed("days, count, number, amount, limit, year, id, hours, size, level")
ENUM_KEYS = words.listed("unit, kind, mode, style, format, order")
VALUE = "\1"  # stands for what the writer may not change


def chat(rng: random.Random) -> Chat:
    """Return a chat of one turn or a few, with the tools it knows."""
    kinds = (_talk, _with_tools, _in_json)
    return rng.choices(kinds, weights=(35, 35, 30))[0](rng)


def _said(question: str, answer: str) -> list[Message]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _pair(rng: random.Random) -> list[Message]:
    """A question and its answer."""
    writer = Writer(rng)
    if rng.random() < 0.35:
        question, answer = turns_of(rng, 1)[0]
        while question.startswith(OWN):
            question, answer = turns_of(rng, 1)[0]
        return _said(question, answer)
    question, answer = rng.choice(TALK)
    return _said(writer.write(question), writer.write(answer))


def _phrase(writer: Writer, template: str) -> str:
    """What the writer writes within a sentence: not capitalised."""
    return writer.write(f"0{template}")[1:]


def _talk(rng: random.Random) -> Chat:
    messages = [message for _ in range(rng.randint(1, 3)) for message in _pair(rng)]
    if rng.random() < 0.1:
        messages += _said(*map(Writer(rng).write, rng.choice(UNTOLD)))
    kind = rng.random()
    if kind < 0.12:
        name = _somebody(rng)
        asked = _said(rng.choice(("What is your name?", "Who are you?")), f"My name is {name}.")
        told = [_message("system", f"You are {name}, a helpful assistant.")]
        return {"messages": told + (asked + messages if kind < 0.06 else messages[:2] + asked)}
    if kind < 0.18:
        name = _somebody(rng)
        met = _said(f"My name is {name}.", f"Nice to meet you, {name}!")
        return {"messages": met + messages[:2] + _said("What is my name?", f"Your name is {name}.")}
    return {"messages": _system(rng, 0.3) + messages}


def _somebody(rng: random.Random) -> str:
    return Writer(rng).write("{oddname}" if rng.random() < 0.5 else "{name}")


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _system(rng: random.Random, share: float) -> list[Message]:
    if rng.random() >= share:
        return []
    return [_message("system", Writer(rng).write(rng.choice(PARTS["systems"])))]


def _tool(rng: random.Random, noun: str, verb: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A tool, and the arguments that it is to be called with."""
    writer, odd = Writer(rng), rng.random() < 0.25
    types = ("integer", "integer", "number")
    parts = f"{verb} {noun}".split() if rng.random() < 0.85 else noun.split()
    name = rng.choice("___-").join(parts)
    if rng.random() < 0.15:
        name = parts[0] + "".join(map(capitalised, parts[1:]))
    properties: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    for number in range(rng.choices((0, 1, 2, 3), weights=(1, 6, 3, 1))[0]):
        kind = "text" if not number or rng.random() < 0.3 else rng.choice(("number", "enum"))
        keys = {"text": TEXT_KEYS, "number": NUMBER_KEYS, "enum": ENUM_KEYS}[kind]
        key = _phrase(writer, "{oddword}") if odd else rng.choice(keys)
        if kind == "number":
            properties[key], arguments[key] = {"type": rng.choice(types)}, rng.randint(1, 120)
        elif kind == "enum":
            options = [_phrase(writer, rng.choice(("{oddword}", "{quality}"))) for _ in range(3)]
            properties[key] = {"type": "string", "enum": options[: rng.randint(2, 3)]}
            arguments[key] = rng.choice(properties[key]["enum"])
        else:
            slot = rng.choice(("{city}", "{city}", "{name}", "{oddname}", "{oddname}", "{oddword}"))
            value = slot if rng.random() < 0.8 else f"{slot} {{oddname}}"
            properties[key], arguments[key] = {"type": "string"}, _phrase(writer, value)
    function: dict[str, Any] = {"name": name}
    if rng.random() < 0.3:
        function["description"] = f"{verb} the {noun}".capitalize()
    function["parameters"] = {"type": "object", "properties": properties}
    return {"type": "function", "function": function}, arguments


def _request(rng: random.Random, noun: str, verb: str, arguments: Mapping[str, Any]) -> str:
    """What a user says for a tool to be called so."""
    writer = Writer(rng)
    if not arguments:
        return writer.write(rng.choice(PARTS["bare requests"]).replace("{noun}", noun))
    (_, value), *others = arguments.items()
    template = rng.choice(PARTS["requests"])
    template = template.replace("{noun}", noun).replace("{verb}", verb)
    text = writer.write(template.replace("{v}", VALUE))
    end = text[-1] if text[-1] in ".?" else ""
    text = text[: len(text) - len(end)].replace(VALUE, str(value))
    for key, other in others:
        more = rng.choice(PARTS["more"])
        text += more.replace("{k}", key).replace("{v}", str(other))
    return text + end


def _with_tools(rng: random.Random) -> Chat:
    """One of one to three tools is called, with its result or without; or none, in mere talk."""
    num_tools = rng.choices((1, 2, 3), weights=(6, 3, 1))[0]
    nouns = [
        noun if rng.random() < 0.7 else _phrase(Writer(rng), "{oddword}")
        for noun in rng.sample(NOUNS, num_tools)
    ]
    verbs, made = [], []
    for noun in nouns:
        verbs.append(rng.choice(VERBS))
        made.append(_tool(rng, noun, verbs[-1]))
    (tool, arguments), noun = made[0], nouns[0]
    tools = [one for one, _ in rng.sample(made, num_tools)]
    before = _system(rng, 0.3) + (_pair(rng) if rng.random() < 0.15 else [])
    if rng.random() < 0.2:
        return {"messages": before + _pair(rng), "tools": tools}
    asked = _request(rng, noun, verbs[0], arguments)
    call = {"name": tool["function"]["name"], "arguments": arguments}
    place = " in " if " in " in asked else " for "
    where = "".join(f"{place}{value}" for value in list(arguments.values())[:1])
    answer = _call(rng, call, noun, where)
    return {"messages": [*before, _message("user", asked), *answer], "tools": tools}


def _call(rng: random.Random, call: Mapping[str, Any], noun: str, where: str) -> list[Message]:
    """A call: one that a request forces, or as the model writes it, mostly with what follows."""
    kind = rng.random()
    if kind < 0.15:
        return [_message("assistant", _held(f"[{_json(call)}]"))]
    if kind < 0.25:
        return [_message("assistant", _held(_json(call["arguments"])))]
    called = {"role": "assistant", "tool_calls": [{"function": call}]}
    result, answer = _result(rng, noun, where)
    if kind >= 0.75:
        return [called]
    more = _pair(rng) if rng.random() < 0.15 else []
    return [called, _message("tool", result), _message("assistant", answer), *more]


def _result(rng: random.Random, noun: str, where: str) -> tuple[str, str]:
    """What a tool returns, and the answer in words; ``where`` is in or for something."""
    writer = Writer(rng)
    slots = ("{weather}", "{quality}", "{oddword}", "{n}", "{colour}", "{day}", "{oddname}")
    found = [_phrase(writer, rng.choice(slots)) for _ in range(2)]
    if rng.random() < 0.4:
        text = ", ".join(found[: rng.randint(1, 2)])
        return text, f"The {noun}{where} is {text}."
    key = rng.choice((noun, noun, "result", *NUMBER_KEYS[:3], _phrase(writer, "{oddword}")))
    data: dict[str, Any] = {key: found[0]}
    if rng.random() < 0.6:
        data[rng.choice(("temperature", "degrees", *NUMBER_KEYS))] = rng.randint(1, 99)
    (first, value), *others = data.items()
    told = "".join(f" and the {key} is {one}" for key, one in others)
    if where and rng.random() < 0.3:
        data = {rng.choice(TEXT_KEYS): where.split(" ", 2)[-1], **data}
    return _json(data), f"The {first}{where} is {value}{told}."


def _value(rng: random.Random, writer: Writer, key: str) -> Any:
    if key in NESTED:
        return {inner: _value(rng, writer, inner) for inner in NESTED[key]}
    if key in LISTS:
        return [_phrase(writer, VALUES[key]) for _ in range(rng.randint(1, 3))]
    if key in TRUTHS:
        return rng.random() < 0.5
    template = VALUES.get(key, "1-999")
    if template[0].isdigit():
        return rng.randint(*map(int, template.split("-")))
    return _phrase(writer, template)


def _in_json(rng: random.Random) -> Chat:
    asked, data = rng.choices((_about, _told, _list), weights=(6, 3, 1))[0](rng)
    answer = _json(data)
    if isinstance(data, dict) and rng.random() < 0.5:
        answer = _hidden(data)
    elif "JSON" not in asked:
        answer = _held(answer)
    return {"messages": [*_system(rng, 0.2), *_said(capitalised(asked), answer)]}


def _about(rng: random.Random) -> tuple[str, Any]:
    """Something of a known kind, described by its keys or not at all."""
    writer = Writer(rng)
    kind = rng.choice(list(KINDS))
    keys = rng.sample(KINDS[kind], rng.randint(1, min(4, len(KINDS[kind]))))
    data = {key: _value(rng, writer, key) for key in keys}
    if rng.random() < 0.5:
        asked = rng.choice(PARTS["guessing"]).replace("{keys}", _listed(keys))
        return writer.write(asked.replace("{noun}", kind)), data
    if rng.random() < 0.4:
        data = _renamed(rng, writer, data)
    noun = kind if rng.random() < 0.8 else _phrase(writer, "{oddword}")
    asked = rng.choice(PARTS["asking"]).replace("{noun}", noun).replace("{facts}", VALUE)
    return _phrase(writer, asked).replace(VALUE, ", ".join(_facts(rng, data))), data


def _told(rng: random.Random) -> tuple[str, Any]:
    """A sentence with the values."""
    writer = Writer(rng)
    template = rng.choice(PARTS["told"])
    data = {key: _value(rng, writer, key) for key in re.findall(r"{(\w+)}", template)}
    asked = template.format_map(data) + rng.choice((" As JSON, please.", " Answer in JSON.", ""))
    keys = rng.sample(list(data), rng.randint(1, len(data)))
    return asked, {key: data[key] for key in keys}


def _list(rng: random.Random) -> tuple[str, Any]:
    """A list of some things."""
    writer, slot = Writer(rng), rng.choice(("colour", "city", "animal", "fruit", "name", "job"))
    number = rng.randint(1, 5)
    things = f"{words.SMALL_NUMBERS[number]} {plural(slot) if number > 1 else slot}"
    asked = f"[List|Name] {things}[ as JSON|, as JSON]."
    return writer.write(asked), [_phrase(writer, f"{{{slot}}}") for _ in range(number)]


def _renamed(rng: random.Random, writer: Writer, data: Mapping[str, Any]) -> dict[str, Any]:
    """``data`` with keys, and some texts, that nobody has seen."""
    renamed = {}
    for value in data.values():
        odd = isinstance(value, str) and rng.random() < 0.5
        renamed[_phrase(writer, "{oddword}")] = writer.write("{oddname}") if odd else value
    return renamed


def _facts(rng: random.Random, data: Mapping[str, Any]) -> Iterator[str]:
    joint = rng.choice((" ", " is ", ": ", " "))
    for key, value in data.items():
        if isinstance(value, bool):
            yield key if value else f"not {key}"
        elif isinstance(value, dict):
            yield f"{key} with {_listed(list(_facts(rng, value)))}"
        elif isinstance(value, list):
            yield f"{key}{joint}{_listed(value)}"
        else:
            yield f"{key}{joint}{str(value).rstrip('.')}"


def _listed(items: list[str]) -> str:
    return " and ".join(", ".join(items).rsplit(", ", 1))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _held(answer: str) -> str:
    """An answer that a grammar begins."""
    return f"\0{answer[0]}\0{answer[1:]}"


def _hidden(data: Mapping[str, Any]) -> str:
    """The object as JSON, its keys and the brackets that hold them not learned."""
    pieces = []
    for number, (key, value) in enumerate(data.items()):
        head = ("{" if number == 0 else "") + f"{_json(key)}: "
        pieces.append(f"\0{head}\0{_json(value)}")
    return ", ".join(pieces) + "}"
