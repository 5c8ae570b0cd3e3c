"""Build time: models.yaml becomes a Triton model repository. Never imports torch."""

from __future__ import annotations

import sys
from pathlib import Path

# The server's modules, some of which are the generator's too (spec/runtime_rules.py).
TEMPLATES = Path(__file__).resolve().parents[1] / "model_templates"
if str(TEMPLATES) not in sys.path:
    sys.path.append(str(TEMPLATES))  # last: its folders' names are no names for others to find
