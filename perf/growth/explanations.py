"""Why costs that grow worse than linearly do, with the evidence; told where a run shows one."""

from __future__ import annotations

from collections.abc import Mapping

EXPLANATIONS: Mapping[tuple[str, str, str], str] = {}
"""By axis, target and figure."""
