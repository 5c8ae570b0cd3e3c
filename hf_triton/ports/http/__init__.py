"""The public HTTP and metrics ports."""
