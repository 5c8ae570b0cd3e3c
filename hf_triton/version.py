"""The version of this library, which is that of hf-triton."""

VERSION = "0.1.0"
