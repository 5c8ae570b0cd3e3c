"""Images and sounds beside a prompt: read by the model's processor, encoded once, merged into the
decoder's inputs by the model itself.
"""
