"""LoRA adapters (https://arxiv.org/abs/2106.09685) over one loaded model, mixed in one batch."""
