"""The soak's requests: the same again for a seed, as mixed as they should be, and packed right."""

from __future__ import annotations

import json
import struct
from collections import Counter
from typing import Any

import pytest

from perf.soak.draw import MAX_ROWS, Drawer
from perf.soak.malformed import malformed
from perf.soak.request import GRPC_WAYS, JSON, PARAMETER, TENSOR, Row, SoakRequest, fields_of
from perf.soak.run import Requests
from perf.soak.wire import grpc_message, http_message

NUM = 1000


@pytest.fixture(scope="module")
def drawn() -> list[SoakRequest]:
    return list(map(Requests(0), range(NUM)))


def request(**changes: Any) -> SoakRequest:
    return SoakRequest(
        **{"number": 1, "kind": "greedy", "way": "infer", "model": "demo", **changes}
    )


def test_a_number_is_the_same_request_in_any_order(drawn: list[SoakRequest]) -> None:
    again, other = Requests(0), Requests(1)

    assert [again(number) for number in range(NUM - 1, -1, -1)] == drawn[::-1]
    assert [other(number) for number in range(NUM)] != drawn


def test_a_tenth_is_malformed_and_a_tenth_abandoned(drawn: list[SoakRequest]) -> None:
    kinds = Counter(one.kind for one in drawn)

    assert set(kinds) == {"greedy", "seeded", "sampled", "timed", "malformed", "abandoned"}
    for kind in ("malformed", "abandoned"):
        assert 0.07 * NUM < kinds[kind] < 0.13 * NUM
    assert kinds["greedy"] > 0.4 * NUM


def test_every_way_and_model_occurs_with_every_kind_of_place(drawn: list[SoakRequest]) -> None:
    assert {(one.model, one.way) for one in drawn if one.kind == "greedy"} >= {
        (model, way)
        for model in ("demo", "batched")
        for way in ("infer", "generate", "generate_stream", "grpc", "grpc_stream")
    }
    assert {place for one in drawn for place in one.places.values()} >= {TENSOR, PARAMETER, JSON}
    assert max(len(one.rows) for one in drawn) == MAX_ROWS
    assert all(one.allowed and one.label for one in drawn if one.kind == "malformed")
    assert all(one.leave for one in drawn if one.kind == "abandoned")


def test_every_request_can_be_packed(drawn: list[SoakRequest]) -> None:
    for one in drawn:
        if one.way in GRPC_WAYS:
            assert grpc_message(one).SerializeToString()
        else:
            assert http_message(one).packed().startswith((b"POST ", b"GET ", b"DELETE "))


def test_rows_of_a_batch_share_n(drawn: list[SoakRequest]) -> None:
    for one in drawn:
        assert len({row.options.get("n", 1) for row in one.rows}) == 1


def test_an_option_is_given_where_its_place_says() -> None:
    row = Row("Once", options={"max_tokens": 3, "temperature": 0.5, "top_k": 4, "seed": 1})
    places = {"max_tokens": TENSOR, "temperature": PARAMETER, "top_k": "json text"}
    fields = fields_of(request(rows=(row,), places=places))

    assert fields.tensors["max_tokens"].rows == [[3]]
    assert fields.parameters == {"temperature": 0.5}
    (text,) = fields.tensors["sampling_parameters"].rows[0]
    assert json.loads(text) == {"top_k": "4", "seed": 1}


def test_words_of_a_batch_are_padded_with_empty_ones() -> None:
    rows = tuple(Row("Once", options={"stop_words": words}) for words in (["a"], ["b", "c"]))
    fields = fields_of(request(rows=rows, places={"stop_words": TENSOR}, batched=True))

    assert fields.tensors["stop_words"].rows == [["a", ""], ["b", "c"]]


def test_infer_and_grpc_carry_the_same() -> None:
    one = request(rows=(Row("Zoë 🙂", options={"max_tokens": 3}),), places={"max_tokens": TENSOR})
    body, message = json.loads(http_message(one).body), grpc_message(one)

    assert [(i["name"], i["shape"], i["data"]) for i in body["inputs"]] == [
        ("text_input", [1], ["Zoë 🙂"]),
        ("max_tokens", [1], [3]),
    ]
    assert [(i.name, list(i.shape)) for i in message.inputs] == [
        ("text_input", [1]),
        ("max_tokens", [1]),
    ]
    text = "Zoë 🙂".encode()
    assert list(message.raw_input_contents) == [
        struct.pack("<I", len(text)) + text,
        struct.pack("<i", 3),
    ]


def test_invalid_utf_8_stays_invalid_on_the_wire() -> None:
    one = request(rows=(Row(b"caf\xc3(".decode("utf-8", "surrogateescape")),))

    assert b"caf\xc3(" in http_message(one).body
    assert grpc_message(one).raw_input_contents[0].endswith(b"caf\xc3(")


def test_malformed_requests_are_of_many_kinds() -> None:
    drawer = Drawer(0, num_cases=1)
    labels = {malformed(drawer.rng(number), number).label for number in range(3000)}

    assert len(labels) > 150
