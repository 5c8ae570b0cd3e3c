"""What is sent: which model answers which endpoint, and the inputs for it."""
