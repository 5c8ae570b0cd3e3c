"""How a step is computed: on a CPU, on a GPU, through transformers."""
