"""The requests and tools of ``/v1/responses``, and the responses that are kept."""
