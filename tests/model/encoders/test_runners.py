"""Every runner gives what the model itself gives of each text alone, whatever is beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from hf_triton.encoder.fused.runner import FusedRunner
from hf_triton.encoder.loading import longest_input, takes_token_types
from hf_triton.encoder.runners.packed_runner import PackedRunner
from hf_triton.encoder.runners.padded_runner import EQUAL_LENGTHS, PaddedRunner
from hf_triton.encoder.runners.runner import (
    Runner,
    RunnerSetup,
    largest_difference,
    random_encodings,
    reference_forward,
    select_runner,
)
from hf_triton.encoder.task import OutputKind
from hf_triton.encoder.texts.tokenization import Tokenization
from hf_triton.runtime.devices.prepacked_linear import prepack
from hf_triton.runtime.errors import LoadError
from tests.support.tiny_encoders import ARCHITECTURES, CONTEXT, texts, tiny_encoder

KINDS: dict[OutputKind, str] = {
    "hidden": "AutoModel",
    "sequences": "AutoModelForSequenceClassification",
    "tokens": "AutoModelForTokenClassification",
}
NOT_PACKED = ("deberta-v2", "mpnet")  # attention of their own
CANDIDATES = (PackedRunner, PaddedRunner, EQUAL_LENGTHS)


def loaded(folder: Path, output: OutputKind, auto_class: str = "") -> tuple[RunnerSetup, Any]:
    """The model's setup and its tokenization."""
    model = getattr(transformers, auto_class or KINDS[output]).from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    types = takes_token_types(model, tokenizer)
    longest = longest_input(model, tokenizer, None)
    tokenization = Tokenization(
        tokenizer, max_length=longest, truncation=True, has_token_types=types
    )
    return RunnerSetup(model, torch.device("cpu"), output, longest, types), tokenization


@pytest.mark.parametrize("output", list(KINDS))
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_texts_of_mixed_lengths_and_pairs_are_each_computed_as_if_alone(
    architecture: str, output: OutputKind, tmp_path: Path
) -> None:
    setup, tokenization = loaded(tiny_encoder(architecture, KINDS[output], tmp_path), output)
    encodings = [tokenization.encode("text_input", text) for text in texts(9)]
    encodings += [
        tokenization.encode("text_input", text, "Anna lives in Paris") for text in texts(3)
    ]
    expected = [reference_forward(setup, encoding) for encoding in encodings]

    runner = select_runner(setup, CANDIDATES)
    assert isinstance(runner, PackedRunner) == (architecture not in NOT_PACKED)
    assert largest_difference(runner.forward(encodings), expected) < 1e-4
    prepack(setup.model)
    assert largest_difference(runner.forward(encodings), expected) < 1e-4
    runner.close()
    assert largest_difference(PaddedRunner(setup).forward(encodings), expected) < 1e-4

    fused = FusedRunner(setup)
    assert largest_difference(fused.forward(encodings), expected) < 1e-4


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_only_wanted_tokens_go_through_the_head(architecture: str, tmp_path: Path) -> None:
    folder = tiny_encoder(architecture, "AutoModelForMaskedLM", tmp_path)
    setup, _ = loaded(folder, "tokens", "AutoModelForMaskedLM")
    encodings = random_encodings(setup, (7, 20, 3))
    expected = [reference_forward(setup, encoding) for encoding in encodings]
    for candidates in (CANDIDATES, (FusedRunner, EQUAL_LENGTHS)):
        runner: Runner = select_runner(setup, candidates)
        found = runner.forward(encodings)
        runner.close()
        assert [output.shape for output in found] == [output.shape for output in expected]
        assert [len(output) for output in found] == [2, 2, 2]
        assert largest_difference(found, expected) < 1e-4


def test_an_answer_does_not_depend_on_its_batch_mates(tmp_path: Path) -> None:
    setup, tokenization = loaded(tiny_encoder("bert", "AutoModel", tmp_path), "hidden")
    runner = PackedRunner(setup)
    one = tokenization.encode("text_input", "the cat sat on the mat")
    alone = runner.forward([one])
    for seed in range(4):
        others = [tokenization.encode("text_input", text) for text in texts(12, seed=seed)]
        among = runner.forward([*others[:6], one, *others[6:]])
        assert largest_difference([among[6]], alone) < 1e-5


def test_a_decoder_with_causal_attention_is_packed(tmp_path: Path) -> None:
    config = transformers.Qwen3Config(
        vocab_size=97,
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_hidden_layers=2,
        intermediate_size=64,
        max_position_embeddings=CONTEXT,
    )
    torch.manual_seed(3)
    model = transformers.Qwen3Model(config).eval()
    setup = RunnerSetup(model, torch.device("cpu"), "hidden", CONTEXT, has_token_types=False)
    encodings = random_encodings(setup, (3, 50, 50, 9))
    expected = [reference_forward(setup, encoding) for encoding in encodings]
    runner = select_runner(setup, CANDIDATES)
    assert isinstance(runner, PackedRunner)
    assert largest_difference(runner.forward(encodings), expected) < 1e-4


def test_a_runner_that_is_not_taken_gives_the_model_back(tmp_path: Path) -> None:
    setup, _ = loaded(tiny_encoder("bert", "AutoModel", tmp_path), "hidden")

    class Wrong(PackedRunner):
        def forward(self, batch: Any) -> list[torch.Tensor]:
            return [output + 0.1 for output in super().forward(batch)]

    class Fails(PackedRunner):
        def forward(self, batch: Any) -> list[torch.Tensor]:
            raise ValueError("no")

    before = setup.model.config._attn_implementation
    assert isinstance(select_runner(setup, (Wrong, Fails, PaddedRunner)), PaddedRunner)
    assert setup.model.config._attn_implementation == before


def test_the_longest_input_counts_the_positions_that_roberta_skips(tmp_path: Path) -> None:
    setup, _ = loaded(tiny_encoder("roberta", "AutoModel", tmp_path), "hidden")
    assert setup.max_length == CONTEXT
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    with pytest.raises(LoadError, match=f"got 129, the model's own limit is {CONTEXT} tokens"):
        longest_input(setup.model, tokenizer, CONTEXT + 1)


def test_a_runner_that_is_wrong_is_not_taken(tmp_path: Path) -> None:
    setup, _ = loaded(tiny_encoder("bert", "AutoModel", tmp_path), "hidden")

    class OffByALot(PaddedRunner):
        name = "off by a lot"

        def forward(self, batch: Any) -> list[torch.Tensor]:
            return [output + 0.1 for output in super().forward(batch)]

    assert isinstance(select_runner(setup, (OffByALot, PaddedRunner)), PaddedRunner)
    with pytest.raises(LoadError, match="off by a lot: differs from the model's own output by"):
        select_runner(setup, (OffByALot,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_computes_no_numbers_is_refused_as_such(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    setup, _ = loaded(tiny_encoder("bert", "AutoModel", tmp_path), "hidden")
    setup.model.to(dtype)
    with torch.no_grad():
        setup.model.embeddings.position_embeddings.weight[2] = float("nan")
    with pytest.raises(LoadError, match=r"^the model itself computes NaN or infinity: ") as caught:
        select_runner(setup, CANDIDATES)
    assert ("try dtype: float32" in str(caught.value)) == (dtype == torch.bfloat16)


def test_batches_are_cut_where_padding_would_be_a_tenth(tmp_path: Path) -> None:
    setup, _ = loaded(tiny_encoder("bert", "AutoModel", tmp_path), "hidden")
    lengths = [100, 98, 3, 97, 4, 60, 5]
    cuts = [[lengths[index] for index in cut] for cut in PaddedRunner(setup).cuts(lengths)]
    assert cuts == [[100, 98, 97], [60], [5, 4, 3]]
    equal = [[lengths[i] for i in cut] for cut in EQUAL_LENGTHS(setup).cuts([3, 5, 3])]
    assert len(equal) == 2
