"""How a report draws a run: which plots, which lines in each, and the drawing by matplotlib."""
