"""What stands between a text and a tokenizer: how long it may be, and what its tokenizer may do."""
