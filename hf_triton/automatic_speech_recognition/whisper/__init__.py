"""Whisper's own rules: its special tokens, its timestamps, and how it reads a long sound."""
