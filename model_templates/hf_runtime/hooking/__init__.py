"""Runs the user's hooks around requests; users import ``hf_runtime.hooks``."""
