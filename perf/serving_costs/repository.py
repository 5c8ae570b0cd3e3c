"""Lays out one model served in four ways, side by side in one repository.

So that they can be measured in turns: an engine without requests sleeps.
"""

from __future__ import annotations

from pathlib import Path

from perf.baselines.repositories import MODEL_FOLDER, generated

DIRECT, TWIN, UNCOUNTED, FRONT = "direct", "twin", "uncounted", "front"
MODELS = (DIRECT, TWIN, UNCOUNTED, FRONT)
ENGINE = f"{FRONT}_stream"
"""Behind the front; named by the generator."""

MAX_MODEL_LEN = 512  # tokens; holds the long prompts
MODEL_YAML = """\
  - name: {name}
    task: text-generation
    model: ./{model}
    dtype: float32
    streaming: {streaming}
    options:
      engine: in_flight
      max_model_len: {max_model_len}
"""
NO_METRICS = {
    "hf_runtime/metrics.py": """

class MetricsPublisher:
    def __init__(self, *_: object) -> None: ...
    def close(self) -> None: ...
""",
    "engine_metrics.py": """

EngineMetrics.computed = EngineMetrics.published = EngineMetrics.ended = lambda *_: None
""",
}
"""File of the runtime -> what, appended to it, makes it count and publish nothing."""


def lay_out_costs(folder: Path) -> Path:
    """Make the repository in ``folder``, which holds the model; return its path.

    ``DIRECT`` and ``TWIN`` are alike and hold their engines themselves, as ``UNCOUNTED`` does,
    whose copy of the runtime has no metrics; ``FRONT`` forwards to ``ENGINE``. Raises
    ``subprocess.CalledProcessError`` when the generator does.
    """
    repository = generated(folder, "costs", "models:\n" + "".join(map(model_yaml, MODELS)))
    for name, addition in NO_METRICS.items():
        file = repository / UNCOUNTED / "1" / name
        file.write_text(file.read_text(encoding="utf-8") + addition, encoding="utf-8")
    return repository


def model_yaml(name: str) -> str:
    """The entry of one model."""
    streaming = str(name == FRONT).lower()
    return MODEL_YAML.format(
        name=name, model=MODEL_FOLDER, streaming=streaming, max_model_len=MAX_MODEL_LEN
    )
