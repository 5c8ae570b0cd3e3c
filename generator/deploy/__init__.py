"""Writes what runs the models elsewhere: Docker Compose, Kubernetes, KServe, dashboard, alerts."""
