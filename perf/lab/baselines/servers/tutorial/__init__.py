"""The baseline model, assembled into a model repository by ``servers/repositories.py``."""
