"""Both measured repositories are ones that a server takes, over the same model."""

from __future__ import annotations

from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from hf_triton.tritonserver.listen import Listen
from perf.lab.baselines.servers.launches import LAUNCHES, Setting
from perf.lab.baselines.servers.repositories import (
    MODEL_FOLDER,
    lay_out_in_flight,
    lay_out_tutorial,
)
from perf.load.requests import OUTPUT_LENGTHS


def config_of(model: Path) -> ModelConfig:
    return text_format.Parse((model / "config.pbtxt").read_text(encoding="utf-8"), ModelConfig())


def test_the_baseline_batches_eight_and_generates_the_longest_length(tmp_path: Path) -> None:
    model = lay_out_tutorial(tmp_path) / "tutorial"
    config = config_of(model)
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (8, True)
    assert int(config.parameters["max_output_length"].string_value) == OUTPUT_LENGTHS[-1]
    measured = model / config.parameters["huggingface_model"].string_value
    assert measured.resolve() == tmp_path / MODEL_FOLDER
    assert (model / "1" / "model.py").is_file()


def test_a_streaming_one_has_a_front_before_its_engine(tmp_path: Path) -> None:
    (tmp_path / MODEL_FOLDER).mkdir()
    repository = lay_out_in_flight(tmp_path, "bfloat16", streaming=True)
    assert {"in_flight", "in_flight_stream"} <= {path.name for path in repository.iterdir()}


def test_ours_is_generated_over_the_same_model_and_again_unchanged(tmp_path: Path) -> None:
    (tmp_path / MODEL_FOLDER).mkdir()
    model = lay_out_in_flight(tmp_path) / "in_flight"
    assert config_of(model).backend == "python"
    assert lay_out_in_flight(tmp_path) == model.parent


def test_the_one_on_vllm_is_the_same_in_vllms_environment(tmp_path: Path) -> None:
    (tmp_path / MODEL_FOLDER).mkdir()
    for _ in range(2):  # as at every start of the server
        repository = lay_out_in_flight(tmp_path, streaming=True, on_vllm=Path("/env"))
    engine = config_of(repository / "in_flight_stream")
    assert engine.parameters["EXECUTION_ENV_PATH"].string_value == "/env"
    assert "EXECUTION_ENV_PATH" not in config_of(repository / "in_flight").parameters


def test_a_path_with_spaces_and_braces_is_one_word_of_a_command_line(tmp_path: Path) -> None:
    folder = str(tmp_path / "my {models}")
    setting = Setting(folder, "bfloat16", Listen("127.0.0.1", 81, 82, 83), tmp_path / "s")
    for name in ("vllm", "transformers-serve"):
        words = LAUNCHES[name].words(setting)
        assert folder in words
        assert [words[words.index(flag) + 1] for flag in ("--port", "--dtype")] == [
            *("81", "bfloat16")
        ]
    assert LAUNCHES["fastapi"].environment(setting) == {"MODEL": folder}
