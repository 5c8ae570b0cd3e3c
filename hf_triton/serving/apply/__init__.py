"""Brings a running server to what models.yaml says, without losing a request."""
