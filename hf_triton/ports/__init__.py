"""All that clients connect to: the processes on the public ports check requests and pass them on."""
