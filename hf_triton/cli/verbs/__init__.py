"""The verbs of ``hf-triton``: each module has ``add_arguments`` and ``run``."""
