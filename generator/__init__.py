"""models.yaml becomes a Triton model repository, or files to deploy. Never imports torch, and nothing
in it runs beside a server.
"""
