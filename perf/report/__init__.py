"""What a run is on disk, and what people and programs read of it."""
