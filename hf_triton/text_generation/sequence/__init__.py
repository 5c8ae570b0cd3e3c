"""One prompt on its way through an engine: its options, its tokens, its text. No torch."""
