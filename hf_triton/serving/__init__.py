"""What `hf-triton serve` and `apply` run: one server, kept alive and up to date."""
