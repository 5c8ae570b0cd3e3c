"""What every engine is made of: the thread that owns the model, and Triton's side of it."""

from hf_triton.runtime import version_folder
from hf_triton.runtime.quick_imports import leave_out

if version_folder is not None:
    leave_out(version_folder)  # before anything imports torch
