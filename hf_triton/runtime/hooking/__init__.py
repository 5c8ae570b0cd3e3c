"""Runs the functions of a user's hooks file on requests and responses; such a file imports
``hf_triton.hooks``.
"""
