"""The demo model and the script that makes it; nothing here is needed to serve."""
