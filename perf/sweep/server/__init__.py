"""What a sweep sees of a server and its machine, and how it starts one of its own."""
