"""models.yaml becomes a Triton model repository, or files to deploy.

Nothing in it imports torch, or runs beside a server.
"""
