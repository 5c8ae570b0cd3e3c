"""What Triton demands of an ensemble's config.pbtxt only when it loads.

Every tensor must come from somewhere and be of use to someone (core/src/ensemble_utils.cc and
ValidateEnsembleSchedulingConfig of core/src/model_config_utils.cc).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from generator.triton_models import ROLE_PARAMETER, STEPS, step_name


def rules_broken(config: Any) -> Iterator[str]:
    """One line for each rule; none where the config is no ensemble's and does not say it is."""
    role = config.parameters[ROLE_PARAMETER].string_value
    steps = config.ensemble_scheduling.step
    if (config.platform == "ensemble", bool(steps)) != (role == "ensemble",) * 2:
        yield "platform ensemble and ensemble_scheduling belong to role ensemble, and only to it"
    elif role == "ensemble":
        yield from _ensemble_rules(config, steps)


def _ensemble_rules(config: Any, steps: Any) -> Iterator[str]:
    expected = [step_name(config.name, step) for step in STEPS]
    if [step.model_name for step in steps] != expected:
        yield f"the steps must be {', '.join(f'<name>_{step}' for step in STEPS)}"
    if config.instance_group or config.HasField("dynamic_batching") or config.backend:
        yield "an ensemble has no backend, instance_group or dynamic_batching of its own"
    known = {tensor.name for tensor in config.input}
    used: set[str] = set()
    for number, step in enumerate(steps, 1):
        read = set(step.input_map.values())
        if read - known:
            missing = ", ".join(sorted(read - known))
            yield f"step {number} reads {missing}, which no step before it makes"
        used |= read
        known |= set(step.output_map.values())
    outputs = {tensor.name for tensor in config.output}
    for name in sorted(outputs - known):
        yield f"output {name} is made by no step"
    for name in sorted(known - used - outputs):
        yield f"{name} is read by no step"
