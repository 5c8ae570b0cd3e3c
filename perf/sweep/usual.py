"""What is measured where no scenario says it: every model of models.yaml, by what it answers."""

from __future__ import annotations

from collections.abc import Sequence

from perf.sweep.scenario import Measuring, Scenario, Sweep

_CONCURRENCY = (1, 4, 16)
_WINDOW_S = 3.0
_MAX_TRIALS = 6


def usual_sweep(models: Sequence[str]) -> Sweep:
    """A few minutes for each model: its usual endpoints with 1, 4 and 16 requests at once."""
    measuring = Measuring(window_s=_WINDOW_S, max_trials=_MAX_TRIALS)
    return Sweep(
        scenarios=tuple(
            Scenario(name=name, models=(name,), concurrency=_CONCURRENCY, measurement=measuring)
            for name in models
        ),
        title=f"sweep of {', '.join(models)}"[:200],
    )
