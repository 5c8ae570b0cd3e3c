"""Tokens/s of clients in a closed loop, where a decode step's time goes, and memory."""
