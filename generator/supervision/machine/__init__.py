"""What the machine allows this process, and what its kernel knows of connections."""
