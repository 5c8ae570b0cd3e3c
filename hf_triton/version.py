"""The version of this library, which is that of hf-triton."""

VERSION = "0.1.0"
# Of a config.pbtxt: the version that its folder is for, with a digest of the code that it runs.
LIBRARY_PARAMETER = "hf_triton_library"
