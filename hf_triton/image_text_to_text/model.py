"""The Triton model of image-text models."""

from hf_triton.text_generation.model import MediaModel


class ImageTextToTextModel(MediaModel):
    """One instance of a model that reads images with its texts."""
