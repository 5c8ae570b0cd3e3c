"""``/v1/files`` and ``/v1/batches`` as OpenAI's package meets them, in front of a fake Triton."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import openai
import pytest

from generator.models_yaml.server_settings import Batches
from tests.support.triton import eventually
from tests.unit.openai_api.conftest import Starter

KEY = "k" * 20
URL: Final = "/v1/completions"
LINE: dict[str, Any] = {"custom_id": "a", "method": "POST", "url": URL}
BODY = {"model": "echo", "prompt": "a b"}


@pytest.fixture
def api(starter: Starter, tmp_path: Path) -> openai.OpenAI:
    settings = Batches(folder=str(tmp_path / "kept"), max_gib=0.01)
    port = starter.api(key=KEY, batches=settings)
    return openai.OpenAI(base_url=f"{port.url}/v1", api_key=KEY, max_retries=0)


def uploaded(api: openai.OpenAI, *bodies: dict[str, Any]) -> str:
    lines = [{**LINE, "custom_id": str(n), "body": body} for n, body in enumerate(bodies)]
    data = "\n".join(map(json.dumps, lines)).encode()
    return api.files.create(file=("in.jsonl", data), purpose="batch").id


def ended(api: openai.OpenAI, file_id: str) -> Any:
    batch = api.batches.create(input_file_id=file_id, endpoint=URL, completion_window="24h")
    running = ("validating", "in_progress")
    assert eventually(lambda: api.batches.retrieve(batch.id).status not in running, 60)
    return api.batches.retrieve(batch.id)


def test_lines_are_answered_as_requests_are(api: openai.OpenAI) -> None:
    batch = ended(api, uploaded(api, BODY, {**BODY, "model": "nix"}, {**BODY, "seed": "x"}))
    [good] = map(json.loads, api.files.content(batch.output_file_id).text.splitlines())
    alone = api.completions.create(model="echo", prompt="a b")
    assert good["custom_id"] == "0"
    assert good["error"] is None
    assert good["response"]["status_code"] == 200
    assert good["response"]["request_id"]
    assert good["response"]["body"]["choices"][0]["text"] == alone.choices[0].text
    bad = [json.loads(one) for one in api.files.content(batch.error_file_id).text.splitlines()]
    told = [(one["custom_id"], one["response"]["status_code"]) for one in bad]
    assert told == [("1", 404), ("2", 400)]
    assert [one["response"]["body"]["error"]["param"] for one in bad] == ["model", "seed"]


def test_mistakes_are_told_by_the_batch(api: openai.OpenAI) -> None:
    file = api.files.create(file=("in.jsonl", b'{"custom_id": "a"}\n{'), purpose="batch")
    batch = ended(api, file.id)
    assert batch.status == "failed"
    told = [(one.line, one.param, one.code) for one in batch.errors.data]
    assert told == [(1, "method", "invalid_method"), (2, None, "invalid_json_line")]


def test_lists_have_pages(api: openai.OpenAI) -> None:
    ids = [uploaded(api, BODY) for _ in range(5)]
    assert [one.id for one in api.files.list(limit=2)] == ids[::-1]  # asks for page after page
    assert [one.id for one in api.files.list(order="asc", after=ids[2])] == ids[3:]
    assert api.files.list(purpose="batch_output").data == []
    assert api.batches.list().data == []
    api.files.delete(ids[0])
    with pytest.raises(openai.NotFoundError) as caught:
        api.files.retrieve(ids[0])
    assert caught.value.param == "id"
    with pytest.raises(openai.BadRequestError, match="after: got"):
        api.files.list(after=ids[0])  # from the first page on, a client would go round


@pytest.mark.parametrize(
    "asked, param",
    [
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"endpoint": "/v1/nothing"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "seconds"),
    ],
)
def test_a_wrong_batch_is_refused_by_its_field(
    asked: dict[str, Any], param: str, api: openai.OpenAI
) -> None:
    given = {"input_file_id": uploaded(api, BODY), "endpoint": URL, "completion_window": "24h"}
    with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as caught:
        api.batches.create(**{**given, **asked})
    assert param in (caught.value.param or "")


@pytest.mark.parametrize(
    "data, fields, status, param",
    [
        (b"", {}, 400, "file"),
        (b"\n" * 50_001 + b"{", {}, 400, "file"),
        (b"{}", {"purpose": "vision"}, 400, "purpose"),
        (b"{}", {"expires_after": {"anchor": "created_at", "seconds": 5}}, 400, "seconds"),
        (b"x" * 12_000_000, {}, 507, None),
        (b"x" * 65 * 2**20, {}, 413, None),
    ],
)
def test_a_wrong_upload_is_refused(
    data: bytes, fields: dict[str, Any], status: int, param: str | None, api: openai.OpenAI
) -> None:
    with pytest.raises(openai.APIStatusError, match="allowed") as caught:
        api.files.create(file=("in.jsonl", data), **{"purpose": "batch", **fields})
    assert caught.value.status_code == status
    assert (param or "") in (caught.value.param or "")
