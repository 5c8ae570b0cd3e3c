"""Writes the files that run the models on Docker Compose, Kubernetes or KServe, with a dashboard
and alerts.
"""
