"""What the server and the generator must agree on: files and tokens of the Hub, Python
environments, the parameters by which requests are kept apart, and how models write calls.

The runtime's own modules for it, which need neither torch nor Triton. In the server they lie
beside model.py; here they are imported from model_templates/.
"""

from __future__ import annotations

from hf_runtime.private_folders import is_made_private
from hf_runtime.request.cache_salt import CACHE_SALT, CALLER
from hf_runtime.request.chat_formats import (
    MAX_HEAD,
    ChatFormat,
    ReasoningForm,
    ToolForm,
    read_counts,
    read_format,
)
from hf_runtime.request.empty_final import EMPTY_FINAL
from hf_runtime.request.left_calls import CALL
from hf_runtime.request.left_calls import VARIABLE as LEFT_CALLS_VARIABLE
from hf_runtime.request.tokenizer_question import TOKENIZER_QUESTION
from hf_runtime.weights.file_hashes import RECORD_FILE, FileHashes, hash_file
from hf_runtime.weights.hub_files import (
    NotServableError,
    choose_adapter_files,
    choose_model_files,
    is_safe_path,
)
from hf_runtime.weights.hub_token import UnusableTokenError, error_line, hub_token
from hf_runtime.weights.locked_files import (
    Difference,
    LockedFile,
    added_files,
    differences,
    missing_files,
    repository_folder,
    snapshot_folder,
)
from python_env.find_environment import (
    FOLDER_VARIABLE,
    MARKER,
    NUMPY_VARIABLE,
    BrokenEnvironmentError,
    built_folder,
    check,
    is_built,
    look_inside,
)

from generator import TEMPLATES

__all__ = [
    "CACHE_SALT",
    "CALL",
    "CALLER",
    "EMPTY_FINAL",
    "ENVIRONMENT_CODE",
    "FOLDER_VARIABLE",
    "LEFT_CALLS_VARIABLE",
    "MARKER",
    "MAX_HEAD",
    "NUMPY_VARIABLE",
    "RECORD_FILE",
    "TOKENIZER_QUESTION",
    "BrokenEnvironmentError",
    "ChatFormat",
    "Difference",
    "FileHashes",
    "LockedFile",
    "NotServableError",
    "ReasoningForm",
    "ToolForm",
    "UnusableTokenError",
    "added_files",
    "built_folder",
    "check",
    "choose_adapter_files",
    "choose_model_files",
    "differences",
    "error_line",
    "hash_file",
    "hub_token",
    "is_built",
    "is_made_private",
    "is_safe_path",
    "look_inside",
    "missing_files",
    "read_counts",
    "read_format",
    "repository_folder",
    "snapshot_folder",
]

# The code by which the server finds a model's environment.
ENVIRONMENT_CODE = TEMPLATES / "python_env"
