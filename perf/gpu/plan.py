"""The sections that can be measured: each a process of its own with a time limit.

Standard library only: this is read before anything is known of the machine.
"""

from __future__ import annotations

from dataclasses import dataclass

FAKE = "fake"  # the device, where there is no GPU


@dataclass(frozen=True)
class Section:
    """One thing to measure: ``measure`` of the module, on a ``shape`` of shapes.py."""

    name: str
    title: str
    module: str
    limit_s: float
    shape: str = ""
    serves: bool = False  # whether it needs a tritonserver and the generator
    is_large: bool = False  # whether it runs only where it is asked for


_SERVED = "through tritonserver"
SECTIONS = {
    section.name: section
    for section in (
        Section("agree-ways", "tokens beside the CPU's: ways", "agree.ways", 120),
        Section("agree-models", "tokens beside the CPU's: models", "agree.models", 90),
        Section("agree-weights", "tokens beside the CPU's: weights", "agree.weights", 60),
        Section("agree-sampling", "tokens beside the CPU's: sampling", "agree.sampling", 45),
        Section("ceilings", "memory and matrix products", "sections.ceilings", 40),
        Section("launches", "kernels, steps, copies, waits", "sections.launches", 40),
        Section("tokens-1b", "tokens/s, 1 B", "sections.throughput", 180, "llama-1b"),
        Section("vllm-1b", "tokens/s of vLLM, 1 B", "sections.vllm", 200, "llama-1b"),
        Section("tokens-8b", "tokens/s, 8 B", "sections.throughput", 300, "llama-8b"),
        Section("encoder", "encoders", "sections.encoder", 150),
        Section("memory", "device memory against its budget", "sections.memory", 150, "llama-1b"),
        Section("server-1b", f"{_SERVED}, 1 B", "sections.served", 420, "llama-1b", serves=True),
        Section(
            "server-8b",
            f"{_SERVED}, 8 B",
            "sections.served",
            540,
            "llama-8b",
            serves=True,
            is_large=True,
        ),
    )
}


def chosen(names: tuple[str, ...] | None, *, large: bool) -> list[Section]:
    """The sections of these names, or all; large ones where asked for."""
    if names is not None:
        return [SECTIONS[name] for name in names]
    return [section for section in SECTIONS.values() if large or not section.is_large]
