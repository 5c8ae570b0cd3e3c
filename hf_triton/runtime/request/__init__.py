"""A request as tasks read it, whichever way it came, and the responder that answers it."""
