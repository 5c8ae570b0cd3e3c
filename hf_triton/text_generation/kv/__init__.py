"""Keys and values: the preallocated cache, and which slot holds the tokens of which prompt."""
