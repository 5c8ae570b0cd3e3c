"""Keeps a tritonserver and its models alive: notices what dies, restarts it, and tells of it."""
