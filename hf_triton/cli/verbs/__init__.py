"""The verbs of ``hf-triton``: each module has HELP, ``add_arguments`` and ``run``."""
