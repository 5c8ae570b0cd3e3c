"""What every task's ``model.py`` shares: reading ``model.json``, devices, weights, Triton's
tensors, errors.

Copied beside each ``model.py`` and imported from there, so the server needs nothing of the
generator.
"""
