"""The audio-text-to-text task: text generation of models that read sounds too."""
