"""The image-text-to-text task: text generation of models that read images too."""
