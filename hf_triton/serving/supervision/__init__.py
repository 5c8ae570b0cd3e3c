"""Keeps a tritonserver and its models alive: notices processes that die and restarts them."""
