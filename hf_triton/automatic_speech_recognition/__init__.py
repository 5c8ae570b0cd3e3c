"""The automatic-speech-recognition task: sounds to text on text_generation's engine."""
