"""How each target is started: its environment, its repository, its command line."""
