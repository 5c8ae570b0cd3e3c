"""The text that the demo model is trained on, composed from word lists and templates."""
