"""The files of images and sounds that requests bring, to pixels and samples."""
