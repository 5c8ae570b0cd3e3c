"""Keeps a tritonserver and its models alive: notices processes that die, restarts them, reports it.
"""
