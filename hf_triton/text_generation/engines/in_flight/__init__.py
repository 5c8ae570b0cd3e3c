"""The engine ``in_flight``: requests join and leave a running batch at every step."""
