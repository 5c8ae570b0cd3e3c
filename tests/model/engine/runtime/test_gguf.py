"""Models of one .gguf file: what is refused by its head, and what the others compute."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.integrations.gguf.dequant import GGML_NAME
from transformers.integrations.gguf.gguf_config_mapping import GGUF_CONFIG_ARCHS
from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

from hf_triton.runtime.devices.device import Placement
from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.weights import gguf_header, quantization
from hf_triton.runtime.weights.gguf_header import check_gguf, read_on
from hf_triton.runtime.weights.hub_files import NotServableError
from hf_triton.runtime.weights.model_files import model_files
from hf_triton.text_generation.loading import load_parts
from tests.support.fake_hub import FakeHub, Repository, ask_from_here, running_hub
from tests.support.gguf_files import DEMO, head, write_demo
from tests.support.served_models import served_model

HEAD = head()
# Under these names of llama.cpp's transformers' list has models of other names.
_RENAMED = {"gpt-oss": "gpt_oss", "minimax-m2": "minimax_m2"}
_RENAMED |= {f"{name}moe": f"{name}_moe" for name in ("qwen2", "qwen3")}


@pytest.mark.threat("gguf-heads")
@pytest.mark.parametrize(
    "content, told",
    [
        (b"PK" + HEAD, "is no GGUF file"),
        (HEAD[:60], "is no whole GGUF file: it ends within its head"),
        (HEAD[:4] + b"\x01" + HEAD[5:], "is GGUF of version 1, expected 2 or 3"),
        (HEAD[:24] + b"\xff" * 8 + HEAD[32:], "its head has more than"),
        (head("clip"), "architecture 'clip', which transformers does not read"),
        (head(types=(0, 41, 12, 77)), "has weights as Q1_0, type 77, which transformers does not"),
        (head("lfm2", (6,)), "has weights as Q5_0, which transformers does not read of lfm2"),
        (head(num_parts=3), "is one of 3 parts"),
    ],
)
def test_what_transformers_can_not_read_is_refused_by_its_head(content: bytes, told: str) -> None:
    with pytest.raises(NotServableError, match=told):
        check_gguf(io.BytesIO(content).read)


def test_a_head_is_read_that_comes_in_blocks_of_any_size() -> None:
    blocks = [HEAD[index : index + 7] for index in range(0, len(HEAD), 7)]
    check_gguf(read_on(blocks))


def test_what_is_let_through_is_what_this_transformers_reads() -> None:
    names = {_RENAMED.get(name, name) for name in gguf_header.ARCHITECTURES}
    assert names <= {*GGUF_SUPPORTED_ARCHITECTURES, *GGUF_CONFIG_ARCHS}
    own = {name for number, name in gguf_header.NAMES.items() if number in GGML_NAME}
    assert own | {"F32", "F16", "BF16"} == gguf_header.OWN_READERS_TYPES


def test_the_types_are_those_of_the_package_that_reads_them() -> None:
    gguf = pytest.importorskip("gguf")
    assert {int(one): one.name for one in gguf.GGMLQuantizationType} == gguf_header.NAMES
    readable = {one.name for one in gguf.quants._type_traits}
    assert readable | {"F32", "F16"} == gguf_header.TYPES


def parts_of(path: Path, **keys: Any) -> Any:
    name = path.name
    served = served_model(path.parent / "m", model=str(path), local=True, gguf_file=name, **keys)
    return load_parts(served, Placement("cpu", {"": "cpu"}))


@pytest.mark.parametrize(
    "quantization, dtype, difference", [("F32", "auto", 1e-4), ("Q8_0", "bfloat16", 1.0)]
)
def test_a_file_computes_what_the_model_does_that_it_was_made_of(
    tmp_path: Path, quantization: str, dtype: str, difference: float
) -> None:
    pytest.importorskip("gguf")
    path = tmp_path / "demo.gguf"
    write_demo(path, quantization)
    (tmp_path / "tokenizer.json").write_text("of another model")  # nothing beside it is read
    parts = parts_of(path, dtype=dtype)
    text = "Once upon a time"
    ids = parts.tokenizer(text, return_tensors="pt").input_ids
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    assert ids.tolist() == tokenizer(text, return_tensors="pt").input_ids.tolist()
    model: Any = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32)
    with torch.no_grad():
        expected, got = model(ids).logits, parts.model(ids).logits
    assert parts.model.dtype == (torch.float32 if dtype == "auto" else torch.bfloat16)
    assert (got.float() - expected).abs().max() < difference
    assert parts.model.hf_quantizer is None


@pytest.mark.threat("oversized-configurations")
def test_a_head_that_describes_far_more_layers_than_the_file_has_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    write_demo(tmp_path / "demo.gguf", num_hidden_layers=100_000)
    with pytest.raises(LoadError, match=r"demo\.gguf: the model that it describes is many times"):
        parts_of(tmp_path / "demo.gguf")


def test_a_package_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantization, "_is_installed", lambda module: False)
    (tmp_path / "a.gguf").write_bytes(HEAD)
    with pytest.raises(LoadError, match=r"a\.gguf is a \.gguf file, .* pip install 'gguf>=0"):
        parts_of(tmp_path / "a.gguf")


def test_a_local_file_that_is_none_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(head("clip"))
    with pytest.raises(LoadError, match=r"a\.gguf is a model of the architecture 'clip'"):
        parts_of(path)
    path.unlink()
    with pytest.raises(LoadError, match="No such file"):
        parts_of(path)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    with running_hub() as hub:
        ask_from_here(hub, monkeypatch, tmp_path / "no token")
        yield hub


def test_the_server_downloads_the_one_file_that_is_asked_for(hub: FakeHub, tmp_path: Path) -> None:
    weights = HEAD + b"w" * 1000
    hub.repositories["org/tiny"] = Repository({"q4.gguf": weights, "q8.gguf": weights + b"8"})
    served = served_model(tmp_path / "m", model="org/tiny", gguf_file="q4.gguf")
    for _ in range(2):  # the second time from the cache
        folder = model_files(served)
        assert [path.name for path in folder.iterdir()] == ["q4.gguf"]
    with pytest.raises(LoadError, match=r"its files of GGUF are q4\.gguf, q8\.gguf$"):
        model_files(served_model(tmp_path / "n", model="org/tiny", gguf_file="q5.gguf"))


def test_the_server_downloads_no_weights_that_it_can_not_read(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories["org/tiny"] = Repository({"a.gguf": head("clip") + b"w" * 2**24})
    served = served_model(tmp_path / "m", model="org/tiny", gguf_file="a.gguf")
    with pytest.raises(LoadError, match="architecture 'clip'"):
        model_files(served)
    assert hub.sent["a.gguf"] < 2**24
