"""``python_env:`` of a model: read here, built here by venv and pip, found again by the server.

What both sides must agree on, where an environment lies and what is wrong with it, is
hf_triton/python_env/find_environment.py, which runs in the server too.
"""
