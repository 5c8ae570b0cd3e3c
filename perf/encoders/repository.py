"""The models.yaml of the measured encoder, in float32 and bfloat16 on one server."""

from __future__ import annotations

from pathlib import Path

from perf.baselines.repositories import generated

MODEL_FOLDER = "minilm-shape"
DTYPES = ("float32", "bfloat16")
MODEL_YAML = """\
  - name: {dtype}
    task: feature-extraction
    model: ./{model}
    dtype: {dtype}
    options:
      pooling: mean
      normalize: true
"""


def lay_out_encoders(folder: Path) -> Path:
    """Make the repository in ``folder``, which holds the model; return its path.

    Raises ``subprocess.CalledProcessError`` when the generator does.
    """
    entries = (MODEL_YAML.format(dtype=dtype, model=MODEL_FOLDER) for dtype in DTYPES)
    return generated(folder, "encoder", "models:\n" + "".join(entries))
