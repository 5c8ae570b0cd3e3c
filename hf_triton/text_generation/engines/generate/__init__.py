"""The engine ``generate``: padded batches through ``model.generate``."""
