"""The baseline model, assembled into a model repository by ``perf.baselines.repositories``."""
