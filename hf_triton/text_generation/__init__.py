"""The text-generation task: ``model.py`` answers Triton, the engines beside it generate."""
