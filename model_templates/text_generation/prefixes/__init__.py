"""Keys and values that prompts share: which slot holds which tokens, and who begins alike."""
