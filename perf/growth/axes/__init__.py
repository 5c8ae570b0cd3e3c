"""What is doubled, and what is measured at each point."""
