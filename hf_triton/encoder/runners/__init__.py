"""How a batch is computed: packed, padded, as CUDA graphs; each held to the model's own forward."""
