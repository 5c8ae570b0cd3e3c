"""The engine ``torch-compile``: encoders compiled by torch."""
