"""Linear layers' weights as 8-bit integers: ONNX Runtime's dynamic quantisation.

Activations are quantized at run time, by one scale for the whole batch: an answer depends a little
on the other texts in its batch. So the runner is checked with a tolerance of its own.
"""

from __future__ import annotations

from pathlib import Path

from .export import quiet

# The largest difference from the model's own output, as ``largest_difference`` counts it: rounding
# to 8 bits is coarser than any float dtype.
TOLERANCE = 0.1
_CPU_INFO = Path("/proc/cpuinfo")


def quantize(source: Path, target: Path) -> None:
    """Writes ``target``, all in one file, from the float32 model ``source``."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(source)
    # The exporter writes shapes that onnxruntime's shape inference contradicts with an error.
    del model.graph.value_info[:]
    with quiet():
        quantize_dynamic(
            model,
            target,
            op_types_to_quantize=["MatMul", "Gemm"],
            per_channel=True,
            reduce_range=not has_vnni(),
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )


def has_vnni() -> bool:
    """Whether the processor adds products of 8 bits in 32: others overflow 16 bits on the way, and
    get weights of 7 bits.

    See https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html.
    """
    try:
        lines = _CPU_INFO.read_text().splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.startswith("flags")), "")
    return any(flag in flags.split() for flag in ("avx512_vnni", "avx_vnni"))
