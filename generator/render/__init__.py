"""A model to the bytes of its folder, config.pbtxt and model.json first. Writes nothing."""
