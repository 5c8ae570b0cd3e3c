"""The parts of every engine: the thread that owns the model, and the Triton model."""

from hf_triton.runtime import version_folder
from hf_triton.runtime.quick_imports import leave_out

if version_folder is not None:
    leave_out(version_folder)  # before anything imports torch
