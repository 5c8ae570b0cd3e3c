"""The version of this library, which is that of hf-triton, and how its extras are installed."""

VERSION = "0.1.0"
# In a config.pbtxt: the version that its folder is for, with a digest of the code that it runs.
LIBRARY_PARAMETER = "hf_triton_library"


def pip_install(extra: str) -> str:
    """The command that installs what an extra of hf-triton brings; hf-triton is on no index."""
    return f"pip install 'PATH[{extra}]', with the path of hf-triton's checkout or wheel"
