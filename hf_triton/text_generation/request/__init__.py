"""A request to the generations that it asks for, and their answer."""
