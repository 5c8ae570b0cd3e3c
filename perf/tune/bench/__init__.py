"""How one choice of settings is measured: on a server and a repository of its own."""
