"""Every runner gives what the model itself gives of each text alone, whatever is beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from hf_triton.encoder.fused.fused_encoder_runner import FusedRunner
from hf_triton.encoder.runners.encoder_runner import (
    Runner,
    largest_difference,
    random_encodings,
    reference_forward,
    select_runner,
)
from hf_triton.encoder.runners.packed_runner import PackedRunner
from hf_triton.encoder.runners.padded_runner import EQUAL_LENGTHS, PaddedRunner
from hf_triton.encoder.task import OutputKind
from hf_triton.encoder.texts.tokenization import Tokenization
from hf_triton.runtime.attention import OwnAttention
from hf_triton.runtime.errors import LoadError
from tests.support.encoder_setups import setup_of
from tests.support.tiny_encoders import ARCHITECTURES, CONTEXT, texts, tiny_encoder

CANDIDATES = (PackedRunner, PaddedRunner, EQUAL_LENGTHS)


@pytest.mark.parametrize("output", ["sequences", "tokens"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_heads_of_texts_and_pairs_are_each_computed_as_if_alone(
    architecture: str, output: OutputKind, tmp_path: Path
) -> None:
    heads = {"tokens": "MaskedLM", "sequences": "SequenceClassification"}
    auto_class = f"AutoModelFor{heads[output]}"
    folder = tiny_encoder(architecture, auto_class, tmp_path)
    setup = setup_of(folder, output, auto_class)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokens = Tokenization(
        tokenizer, max_length=CONTEXT, truncation=True, has_token_types=setup.has_token_types
    )
    encodings = random_encodings(setup, (7, 20, 3))  # of each, two tokens are wanted
    if output == "sequences":
        encodings += [tokens.encode("a", text, "Anna lives in Paris") for text in texts(3)]
    expected = [reference_forward(setup, encoding) for encoding in encodings]
    own_attention = OwnAttention(setup.model)
    for candidates in (CANDIDATES, (PaddedRunner,), (FusedRunner,)):
        runner: Runner = select_runner(setup, candidates)
        found = runner.forward(encodings)
        own_attention.restore()
        assert [one.shape for one in found] == [one.shape for one in expected]
        assert largest_difference(found, expected) < 1e-4


def test_a_runner_that_is_wrong_is_not_taken_and_gives_the_model_back(tmp_path: Path) -> None:
    setup = setup_of(tiny_encoder("bert", "AutoModel", tmp_path))

    class Wrong(PackedRunner):
        name = "off by a lot"

        def forward(self, batch: Any) -> list[torch.Tensor]:
            return [output + 0.1 for output in super().forward(batch)]

    class Fails(PackedRunner):
        def forward(self, batch: Any) -> list[torch.Tensor]:
            raise ValueError("no")

    before = setup.model.config._attn_implementation
    assert isinstance(select_runner(setup, (Wrong, Fails, PaddedRunner)), PaddedRunner)
    assert setup.model.config._attn_implementation == before
    with pytest.raises(LoadError, match="off by a lot: differs from the model's own output by"):
        select_runner(setup, (Wrong,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_computes_no_numbers_is_refused_as_such(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    setup = setup_of(tiny_encoder("bert", "AutoModel", tmp_path))
    setup.model.to(dtype)
    with torch.no_grad():
        setup.model.embeddings.position_embeddings.weight[2] = float("nan")
    with pytest.raises(LoadError, match=r"^the model itself computes NaN or infinity: ") as caught:
        select_runner(setup, CANDIDATES)
    assert ("try dtype: float32" in str(caught.value)) == (dtype == torch.bfloat16)


def test_batches_are_cut_where_padding_would_be_a_tenth(tmp_path: Path) -> None:
    setup = setup_of(tiny_encoder("bert", "AutoModel", tmp_path))
    lengths = [100, 98, 3, 97, 4, 60, 5]
    cuts = [[lengths[index] for index in cut] for cut in PaddedRunner(setup).cuts(lengths)]
    assert cuts == [[100, 98, 97], [60], [5, 4, 3]]
    equal = [[lengths[i] for i in cut] for cut in EQUAL_LENGTHS(setup).cuts([3, 5, 3])]
    assert len(equal) == 2
