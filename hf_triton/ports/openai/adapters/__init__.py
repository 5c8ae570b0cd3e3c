"""LoRA adapters that requests load into running models, and unload."""
