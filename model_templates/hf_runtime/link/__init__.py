"""Requests from one model's process to the engine in another's, over a socket."""
