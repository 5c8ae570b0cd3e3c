"""Encoders with quantized weights: what computes them, and what refuses them by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from generator.errors import GeneratorError
from hf_triton.cli.verbs.generate import generate
from hf_triton.encoder.encoder_loading import EncoderFiles, torch_runner
from hf_triton.encoder.fused.fused_encoder_runner import FusedRunner
from hf_triton.encoder.runners.encoder_runner import (
    largest_difference,
    random_encodings,
    reference_forward,
    tolerance_of,
)
from hf_triton.runtime.devices import prepacked_linear
from hf_triton.runtime.devices.device import Placement
from hf_triton.text_classification.classification import TextClassification
from hf_triton.text_classification.options import Options
from tests.support.encoder_setups import served_model
from tests.support.tiny_encoders import tiny_encoder

CPU = Placement("cpu", {"": "cpu"})


@pytest.mark.skipif(
    not prepacked_linear.multiplies_exactly(), reason="this CPU multiplies bytes inexactly"
)
@pytest.mark.parametrize("method", ["int8", "int8_dynamic"])
def test_linear_layers_are_quantized_joined_and_fused(method: str, tmp_path: Path) -> None:
    files = tiny_encoder("bert", "AutoModelForSequenceClassification", tmp_path / "model")
    served = dataclasses.replace(
        served_model(files, tmp_path, task="text-classification"), quantization={"method": method}
    )
    setup, _ = EncoderFiles(served, Options(), TextClassification).setup(CPU)
    scene = random_encodings(setup)
    expected = [reference_forward(setup, encoding) for encoding in scene]
    allowed = tolerance_of(setup.model)
    assert allowed == {"int8": 0.08, "int8_dynamic": 0.25}[method]
    runner = torch_runner(setup, served, Options())
    assert isinstance(runner, FusedRunner)
    assert largest_difference(runner.forward(scene), expected) < allowed
    whole = dataclasses.replace(served, quantization=None)
    exact, _ = EncoderFiles(whole, Options(), TextClassification).setup(CPU)
    expected = [reference_forward(exact, encoding) for encoding in scene]
    assert 1e-4 < largest_difference(runner.forward(scene), expected) < 0.1
    kinds = {name: type(module).__name__ for name, module in setup.model.named_modules()}
    assert kinds["bert.encoder.layer.0.output.dense"] == "Int8Linear"
    assert kinds["bert.encoder.layer.0.attention.self.query"] == "LinearPart"


@pytest.mark.parametrize(
    "keys, told",
    [
        ("options: {engine: onnxruntime}", "onnxruntime quantizes what it exports"),
        (
            "layout: ensemble, ensemble: {backend: onnxruntime}",
            "ensemble.backend computes an exported file",
        ),
    ],
)
def test_what_computes_other_weights_refuses_the_key_by_name(
    keys: str, told: str, tmp_path: Path
) -> None:
    config = tmp_path / "models.yaml"
    config.write_text(
        "models: [{name: tagger, task: token-classification, model: org/name, "
        f"quantization: int8_dynamic, {keys}}}]\n"
    )
    with pytest.raises(GeneratorError, match=f"quantization: expected null: {told}"):
        generate(config, tmp_path / "repository")
