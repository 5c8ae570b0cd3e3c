"""What is particular to ``/v1/responses``: its requests, its tools, and those that are kept."""
