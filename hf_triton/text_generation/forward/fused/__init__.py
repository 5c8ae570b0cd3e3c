"""Decoders on the CPU, with what lies between their matrix products compiled."""
