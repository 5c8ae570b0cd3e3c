"""What speculative decoding brings: one engine in alternating rounds, with drafts and without."""
