"""Serves models: the code inside Triton, and around it ports, supervisor and command line.

The model.py of a generated folder imports its task's classes from here.
"""
