"""Adapters of one model in one batch: PEFT's own tokens for each, and what can't be served."""

from __future__ import annotations

import json
import sys
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_triton.runtime.devices.prepacked_linear import prepack
from hf_triton.runtime.errors import LoadError, OverloadedError
from hf_triton.text_generation.engine.engine import Engine
from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from hf_triton.text_generation.lora.linear import Matrices, RowAdapters, StepAdapters, attach
from hf_triton.text_generation.lora.reading import AdapterReader
from tests.support.driving import Answers, running, setup
from tests.support.tiny_adapters import peft_reference, read, save_adapter, served_with
from tests.support.tiny_models import Asked, mixed_load, shrunk_model, tiny_model
from tests.support.triton import eventually

# The layers of each of two adapters: attention alone; with other ranks, all and the head.
TARGETS: dict[str, tuple[list[str], list[str]]] = {
    "llama": (["q_proj", "v_proj"], ["k_proj", "o_proj", "gate_proj", "down_proj", "lm_head"]),
    "gpt2": (["c_attn"], ["c_attn", "c_fc", "lm_head"]),
    "falcon-rotary": (["query_key_value"], ["dense", "dense_4h_to_h", "lm_head"]),
    "qwen3-next": (["in_proj_qkvz", "q_proj"], ["in_proj_ba", "out_proj", "o_proj", "lm_head"]),
}
RUNNERS = (
    ("llama", "fused"),
    ("falcon-rotary", "fused"),
    ("llama", "packed"),
    ("qwen3-next", "packed, states"),
    ("gpt2", "packed on a GPU"),
    ("qwen3-next", "packed, states on a GPU"),
)
NAMES = ("polite", "sql", None, "sql", None, "polite", "polite", "sql")


def mixed_adapters() -> list[Asked]:
    asked = mixed_load(len(NAMES))
    return [replace(one, lora_name=name) for one, name in zip(asked, NAMES, strict=True)]


def adapters_of(name: str, model: Any, folder: Path) -> dict[str, Path]:
    first, second = TARGETS[name]
    alpha = {"lora_alpha": 16, "rank_pattern": {"c_fc": 2, "o_proj": 2}}
    return {
        "polite": save_adapter(model, folder / "polite", r=4, lora_alpha=8, target_modules=first),
        "sql": save_adapter(
            model, folder / "sql", seed=1, r=3, use_rslora=True, target_modules=second, **alpha
        ),
    }


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two adapters of the tiny Llama."""
    return adapters_of("llama", tiny_model("llama"), tmp_path_factory.mktemp("llama"))


def generated(engine: Engine, asked: list[Asked], at_once: int) -> list[tuple[int, ...]]:
    """Greedy tokens of each, ``at_once`` of them together."""
    answers = Answers()
    for first in range(0, len(asked), at_once):
        engine.submit(answers.of(asked[first : first + at_once], first))
        answers.wait(min(first + at_once, len(asked)))
    return [answers.completion(number).token_ids for number in range(len(asked))]


def failure(engine: Engine, name: str) -> str:
    """The error of a sequence with this adapter."""
    answers = Answers()
    engine.submit(answers.of([Asked([1, 2], 2, lora_name=name)]))
    return str(answers.wait(1)[0])


@pytest.mark.parametrize(
    "name, runner, way",
    [
        *((*each, "prepacked") for each in RUNNERS),
        (*RUNNERS[0], "plain"),
    ],
)
def test_each_request_gets_the_tokens_of_pefts_own_model(
    name: str,
    runner: str,
    way: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    prepare: Any = prepack if way == "prepacked" else lambda model: None
    if runner == "packed":
        request.getfixturevalue("not_fused")
    folders = adapters_of(name, tiny_model(name), tmp_path)
    asked = mixed_adapters()
    expected = peft_reference(tiny_model(name), folders, asked)
    made = setup(tiny_model(name), max_num_seqs=5, max_num_batched_tokens=24)
    adapters = read(made.model, folders)
    compiled = not runner.endswith(" on a GPU")
    runner = runner.removesuffix(" on a GPU")
    engine = InFlightEngine(replace(made, prepare=prepare, adapters=adapters, compiled=compiled))
    with running(engine):
        assert f"({runner}, adapters)" in engine.description
        assert generated(engine, asked, at_once=len(asked)) == expected
        assert generated(engine, asked, at_once=1) == expected
        told = {one.name: one.samples for one in engine.families()}
        counts = {
            one.labels["adapter"]: one.value for one in told["hf_triton_adapter_sequences_total"]
        }
        assert counts == {name: 2 * NAMES.count(name) for name in folders}


def rows_of(numbers: list[int]) -> RowAdapters:
    return RowAdapters(numbers, torch.device("cpu"))


@pytest.mark.parametrize("num_adapters", [3, 120])
def test_rows_are_computed_by_their_own_adapters(num_adapters: int) -> None:
    ranks = tuple((0, 7, 25)[number % 3] for number in range(num_adapters))
    torch.manual_seed(0)
    matrices = Matrices(torch.randn(sum(ranks), 12), torch.randn(sum(ranks), 20), ranks)
    numbers = [2, 0, 3, 1, num_adapters, 2]
    x, y = torch.randn(len(numbers), 12), torch.randn(len(numbers), 40)[:, 10:30]
    expected = y.double()
    for row, number in enumerate(numbers):
        if number:
            columns = slice(matrices.ends[number - 1], matrices.ends[number])
            down, up = matrices.down[columns].double(), matrices.up[columns].double()
            expected[row] += down @ x[row].double() @ up
    found = y.clone()
    rows_of(numbers).add(matrices, x, found)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)


def test_what_overflows_in_one_adapter_is_in_its_own_rows_alone() -> None:
    """Weights that are finite and huge."""
    ranks = (2, 3, 4)
    torch.manual_seed(0)
    matrices = Matrices(torch.randn(9, 12), torch.randn(9, 20), ranks)
    numbers, x, y = [1, 2, 3, 0, 1, 2], torch.ones(6, 12), torch.zeros(6, 20)
    expected = y.clone()
    rows_of(numbers).add(matrices, x, expected)
    matrices.down[2:5] = torch.finfo(torch.float32).max
    others = torch.tensor([number != 2 for number in numbers])
    found = y.clone()
    rows_of(numbers).add(matrices, x, found)
    assert not found[~others].isfinite().any()
    torch.testing.assert_close(found[others], expected[others])


def test_a_head_sees_the_sampled_rows_even_where_there_are_as_many_as_tokens() -> None:
    tokens, sampled = rows_of([1, 2]), rows_of([1, 2])
    step = StepAdapters(2, 2, tokens, sampled)
    assert step.of(2, is_head=True) is sampled
    assert step.of(2, is_head=False) is tokens
    step = StepAdapters(5, 2, tokens, sampled)
    assert step.of(2, is_head=False) is sampled
    assert step.of(5, is_head=True) is tokens  # of a model that makes every token's logits
    assert StepAdapters(5, 0, tokens, None).of(1, is_head=True) is None


def test_an_adapter_of_what_makes_all_earlier_keys_is_refused(tmp_path: Path) -> None:
    """Another sequence's adapter, or none, may have been there for the earlier ones."""
    model = tiny_model("deepseek")
    saved = {"late": save_adapter(model, tmp_path, r=4, target_modules=["kv_b_proj"])}
    with pytest.raises(LoadError, match=r"^adapters: .*kv_b_proj computes the keys and values"):
        attach(model, read(model, saved))


@pytest.mark.parametrize("way", ["compiled", "pages"])
def test_adapters_change_under_sequences_that_go_on_with_theirs(
    llama: dict[str, Path], tmp_path: Path, way: str
) -> None:
    """The cache of an old adapter is never shared with a new one of the same name."""
    made = setup(tiny_model("llama"), max_num_seqs=4)
    model, prompt = made.model, mixed_load(3)[2].prompt
    other = save_adapter(model, tmp_path, seed=5, r=8, target_modules=["up_proj", "q_proj"])
    after = {"sql": other, "new": llama["polite"]}
    asked = [Asked(prompt, 30, lora_name=name) for name in ("polite", "sql", None)]
    later = [Asked(prompt, 9, lora_name=name) for name in ("sql", "new", None)]
    expected = peft_reference(tiny_model("llama"), llama, asked)
    expected_later = peft_reference(tiny_model("llama"), after, later)
    files = AdapterReader(served_with(llama), model.config, model.dtype)
    made = replace(made, compiled=way == "compiled")
    engine = InFlightEngine(replace(made, adapters=(held := files.adapters())))
    read_ahead = files.read(served_with(after).adapters)  # may take longer than the sequences
    going: list[int] = []

    def change() -> None:
        assert eventually(lambda: engine.metrics.num_generated_tokens > 6)
        engine.change_adapters(read_ahead)
        going.append(engine.thread.num_unfinished)

    with running(engine):
        thread = threading.Thread(target=change)
        thread.start()
        assert generated(engine, asked, at_once=3) == expected
        thread.join()
        assert going == [3]
        assert list(held) == ["sql", "new"]
        reused = engine.metrics.num_reused_prompt_tokens
        assert generated(engine, later[:2], at_once=1) == expected_later[:2]
        assert engine.metrics.num_reused_prompt_tokens == reused
        assert generated(engine, later, at_once=3) == expected_later
        assert len(held.computed) == 4
        engine.forget_removed_adapters()
        assert len(held.computed) == 2
        assert generated(engine, later, at_once=3) == expected_later
        assert failure(engine, "polite") == "lora_name: this adapter has been removed"
        engine.change_adapters([])
        assert failure(engine, "sql") == "lora_name: this adapter has been removed"


def test_a_change_that_is_made_while_it_is_refused_counts_as_made(
    llama: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = setup(tiny_model("llama"))
    files = AdapterReader(served_with(llama), made.model.config, made.model.dtype)
    engine = InFlightEngine(replace(made, adapters=(held := files.adapters())))

    def refused() -> None:
        assert eventually(lambda: list(held) == ["sql"])
        raise OverloadedError("the engine is stuck in a step: try again later")

    with running(engine):
        monkeypatch.setattr(engine.thread, "check_running", refused)
        engine.change_adapters(files.read(served_with({"sql": llama["sql"]}).adapters))


def test_changes_that_were_refused_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise OverloadedError("the engine is stuck in a step: try again later")

    class Change:
        def __call__(self) -> None:
            raise AssertionError

    def refuse() -> weakref.ref[Change]:
        change = Change()
        with pytest.raises(OverloadedError):
            engine.between_steps(change)
        return weakref.ref(change)

    engine = InFlightEngine(setup(tiny_model("llama")))
    monkeypatch.setattr(engine.thread, "check_running", refused)
    held = [refuse() for _ in range(3)]
    assert [one() for one in held[:2]] == [None, None]
    engine.stop()


def test_a_change_that_fails_is_told_to_its_caller_alone() -> None:
    def fail() -> None:
        raise ValueError("this change")

    with running(InFlightEngine(setup(tiny_model("llama")))) as engine:
        with pytest.raises(ValueError, match="this change"):
            engine.between_steps(fail)
        engine.between_steps(lambda: None)
        assert engine.is_healthy


def test_an_adapter_that_is_as_before_is_not_read_again(llama: dict[str, Path]) -> None:
    files = AdapterReader(served_with(llama), tiny_model("llama").config, torch.float32)
    before = files.read(served_with(llama).adapters)
    after = files.read(served_with({"sql": llama["polite"], "polite": llama["polite"]}).adapters)
    assert after[1] is before[0]
    assert after[0].key not in {adapter.key for adapter in before}


def test_an_adapter_of_a_router_that_is_read_past_is_refused(tmp_path: Path) -> None:
    model = shrunk_model("longcat_flash")
    saved = {"late": save_adapter(model, tmp_path, r=2, target_modules=["classifier"])}
    with pytest.raises(LoadError, match=r"the layer around .*classifier multiplies its weight"):
        attach(model, read(model, saved))


def test_an_adapter_of_a_layer_that_is_read_past_is_refused_at_the_load_and_while_it_runs(
    tmp_path: Path,
) -> None:
    model = tiny_model("mamba")
    fine = save_adapter(model, tmp_path / "fine", r=2, target_modules=["x_proj"])
    late = save_adapter(model, tmp_path / "late", r=2, target_modules=["dt_proj"])
    with pytest.raises(LoadError, match=r"the layer around .*dt_proj multiplies its weight itself"):
        attach(model, read(model, {"late": late}))
    files = AdapterReader(served_with({"fine": fine}), model.config, model.dtype)
    adapters = files.adapters()
    attach(model, adapters)
    with pytest.raises(LoadError, match=r"^adapter late: it changes .*dt_proj, which a running"):
        adapters.change_to(files.read(served_with({"late": late}).adapters), ())


def error_of(folder: Path, name: str = "llama") -> str:
    with pytest.raises(LoadError) as raised:
        read(tiny_model(name), {"sql": folder})
    return str(raised.value)


def changed_config(folder: Path, to: Path, **changes: Any) -> Path:
    """A copy of an adapter whose configuration says something else."""
    to.mkdir()
    (to / "adapter_model.safetensors").write_bytes(
        (folder / "adapter_model.safetensors").read_bytes()
    )
    config = json.loads((folder / "adapter_config.json").read_text())
    (to / "adapter_config.json").write_text(json.dumps({**config, **changes}))
    return to


CONFIG = "adapter_config.json"


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"peft_type": "IA3"}, f"{CONFIG}: peft_type: got IA3, expected LORA"),
        ({"use_dora": True}, f"{CONFIG}: use_dora is set, and only plain LoRA is served; merge"),
        ({"bias": "all"}, f"{CONFIG}: bias is set, and only plain LoRA is served"),
        ({"modules_to_save": ["lm_head"]}, f"{CONFIG}: modules_to_save is set"),
        ({"trainable_token_indices": [1]}, f"{CONFIG}: trainable_token_indices is set"),
        (
            {"init_lora_weights": "pissa_niter_4"},
            f"{CONFIG}: init_lora_weights: pissa_niter_4 goes with changed weights",
        ),
        (
            {"r": 2},
            (
                "model.layers.0.self_attn.q_proj.lora_A is 4 x 32, this model needs 2 x 32: it was "
                "made for org/other, not for org/tiny"
            ),
        ),
        (
            {"target_modules": ["q_proj"]},
            "weights for model.layers.0.self_attn.v_proj.lora_A.weight, which this model lacks",
        ),
        (
            {"target_modules": ["q_proj", "v_proj", "o_proj"]},
            "no weights for model.layers.0.self_attn.o_proj.lora_A, which its adapter_config.json",
        ),
        ({"target_modules": ["wqkv"]}, "Target modules {'wqkv'} not found in the base model"),
        ({"target_modules": ["embed_tokens"]}, "model.embed_tokens: its kind (Embedding) is not"),
    ],
    ids=str,
)
def test_an_adapter_that_cant_be_served_is_refused_by_name(
    llama: dict[str, Path], tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    changes = {"base_model_name_or_path": "org/other", **changes}
    found = error_of(changed_config(llama["polite"], tmp_path / "changed", **changes))
    assert found.startswith(f"adapter sql: {expected}")
    assert "\n" not in found


FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def with_weights(folder: Path, to: Path, **changes: Any) -> Path:
    """A copy of an adapter with other weights, by name."""
    file = changed_config(folder, to) / "adapter_model.safetensors"
    save_file({**load_file(file), **changes}, file)
    return to


def test_weights_that_are_not_low_rank_or_not_finite_are_refused(
    llama: dict[str, Path], tmp_path: Path
) -> None:
    """Finite in the file, and not in the model's dtype or not times their scaling, too."""
    own, shape = llama["polite"], (4, 32)
    head = {"base_model.model.lm_head.weight": torch.zeros(97, 32)}
    assert error_of(with_weights(own, tmp_path / "whole", **head)) == (
        "adapter sql: whole weights of lm_head.weight, and only low-rank changes are served; save "
        "it by PEFT with save_embedding_layers=False"
    )
    broken = with_weights(own, tmp_path / "nan", **{FIRST: torch.full(shape, torch.nan)})
    assert error_of(broken).endswith("q_proj.lora_A holds numbers that are not finite in float32")
    assert error_of(changed_config(own, tmp_path / "scaled", lora_alpha=1e40)).endswith(
        "q_proj.lora_B holds numbers that are not finite in float32 times the adapter's scaling, "
        "2.5e+39"
    )
    large = with_weights(own, tmp_path / "large", **{FIRST: torch.full(shape, 1e5)})
    read(tiny_model("llama"), {"sql": large})
    with pytest.raises(LoadError, match=r"q_proj\.lora_A holds .* not finite in float16$"):
        read(tiny_model("llama").half(), {"sql": large})
    (large / "adapter_model.safetensors").write_bytes(b"no safetensors")
    assert error_of(large).startswith("adapter sql: SafetensorError: ")


def test_a_folder_without_an_adapter_and_one_with_a_pickle_are_refused(
    llama: dict[str, Path], tmp_path: Path
) -> None:
    assert error_of(tmp_path).startswith("adapter sql: local adapter: no adapter_config.json in ")
    folder = changed_config(llama["polite"], tmp_path / "changed")
    torch.save(load_file(folder / "adapter_model.safetensors"), folder / "adapter_model.bin")
    (folder / "adapter_model.safetensors").unlink()
    assert "has weights only as a pickle (adapter_model.bin)" in error_of(folder)
    served = served_with({"sql": folder}, allow_pickle=True)
    adapters = AdapterReader(served, tiny_model("llama").config, torch.float32).adapters()
    assert tuple(adapters) == ("sql",)


def test_without_peft_the_load_says_what_to_install(
    llama: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    found = error_of(llama["sql"])
    assert found.startswith("adapters: they need PEFT, which is not installed")
    assert found.endswith("pip install 'peft>=0.21,<0.22'")
