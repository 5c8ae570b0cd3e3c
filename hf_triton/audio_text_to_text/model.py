"""The Triton model of audio-text models."""

from hf_triton.text_generation.model import MediaModel


class AudioTextToTextModel(MediaModel):
    """One instance of a model that reads sounds with its texts."""
