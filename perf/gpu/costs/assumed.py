"""What the cost model assumes, in one place. None of it is measured on a GPU by this project:
``hf-triton perf gpu`` measures what to put in its place.

Kernels, copies and waits are counted on the fake GPU; times of the host are of one core of a Xeon
with a model of 32 layers so narrow that its products cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

# A kernel with little to do behind another one of a graph: its start and its end, on an H100.
SMALL_KERNEL_S = 1.8e-6
PRODUCT_SHARE = 0.92  # of the bandwidth that products of few rows read weights with
CONTEXT_GIB = 0.6  # what CUDA and cuBLAS take before anything is loaded
CUDNN_PLAN_S = 30e-3  # what cuDNN takes for each new shape of attention
COPY_S = 9e-6  # to start a copy between slots, of a layer's keys or values


@dataclass(frozen=True)
class Card:
    """A GPU; ``memory_gib`` is what CUDA reports as its total, ``step_gib`` what the engine leaves
    free for its largest step and the graphs', as counted for Llama-2-7B.
    """

    name: str
    memory_gib: float
    step_gib: float
    bytes_per_s: float
    flop_per_s: float


# An H100 (SXM) on paper: 3.35 TB/s and 989 TFLOP/s in bfloat16; nine tenths and half of that.
H100 = Card("H100 80 GB", 79.6, 0.95, 3.0e12, 500e12)
# An A10: 600 GB/s and 125 TFLOP/s on paper.
A10 = Card("A10 24 GB", 22.3, 0.48, 0.5e12, 60e12)


@dataclass(frozen=True)
class Decoder:
    """A Llama in bfloat16."""

    name: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    context: int
    weight_bytes: float
    read_bytes: float  # a step: not an embedding table that is no output layer

    @property
    def flop_per_token(self) -> float:
        """A multiplication and an addition for each weight of 2 bytes."""
        return self.read_bytes

    @property
    def bytes_per_token(self) -> int:
        """Of keys and values, in all layers."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim * 2


LLAMA_2_7B = Decoder("Llama-2-7B", 32, 32, 128, 4096, 13.48e9, 13.21e9)
LLAMA_31_8B = Decoder("Llama-3.1-8B", 32, 8, 128, 131_072, 16.06e9, 15.01e9)
LLAMA_135M = Decoder("Llama 135 M", 30, 3, 64, 8192, 0.27e9, 0.27e9)


@dataclass(frozen=True)
class Design:
    """How an engine keeps keys and makes its steps: in slots, decodes alone as graphs, or in pages,
    as the engine does now.
    """

    name: str
    has_pages: bool
    products_a_layer: int  # kernels
    others_a_layer: int  # kernels, attention's too
    others_a_step: int  # kernels, of sampling too
    attention_share: float  # of the bandwidth that attention reads keys and values with
    host_s: float  # of a step
    host_s_per_sequence: float
    is_one_ahead: bool  # whether the host works while the device computes
    launch_s: float  # of each kernel where there is no graph
    prompt_s: float  # of each prompt after the first where there is no graph
    has_plans: bool  # whether cuDNN attends


# At commit be831a5: masked attention over padded rows, SDPA called for each prompt.
SLOTS = Design(
    "slots, before",
    has_pages=False,
    products_a_layer=7,
    others_a_layer=34,
    others_a_step=1,
    attention_share=0.6,
    host_s=30e-6,
    host_s_per_sequence=3.4e-6,
    is_one_ahead=False,
    launch_s=14e-6,
    prompt_s=1e-3,
    has_plans=True,
)
# Greedy; top-k with top-p or penalties take the host 5 us more for each sequence.
PAGES = Design(
    "pages, fused layers",
    has_pages=True,
    products_a_layer=4,
    others_a_layer=5,
    others_a_step=21,
    attention_share=0.8,
    host_s=140e-6,
    host_s_per_sequence=4e-6,
    is_one_ahead=True,
    launch_s=14e-6,
    prompt_s=0.0,
    has_plans=False,
)
# A decoder of another shape than Llama's.
MODULES = replace(PAGES, name="pages, transformers' layers", products_a_layer=7, others_a_layer=34)
