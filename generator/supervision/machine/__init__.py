"""What the machine allows this process."""
