"""Measurements of what the generated models do under load; see ``perf/README.md``."""
