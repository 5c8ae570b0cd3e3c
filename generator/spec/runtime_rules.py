"""Rules that the server and the generator share: files and tokens of the Hub, Python
environments, the parameters by which requests are kept apart, and how models write calls.

The library's own modules for it, which need neither torch nor Triton.
"""

from __future__ import annotations

from hf_triton.python_env.find_environment import (
    ENVIRONMENT_FILE,
    FOLDER_VARIABLE,
    LIBRARY_PATH,
    MARKER,
    NUMPY_VARIABLE,
    BrokenEnvironmentError,
    built_folder,
    check,
    failure_file,
    is_built,
    look_inside,
)
from hf_triton.runtime.disk_cache import is_made_private
from hf_triton.runtime.link.protocol import VERSION as LINK_VERSION
from hf_triton.runtime.request.abandoned_requests import CALL
from hf_triton.runtime.request.abandoned_requests import VARIABLE as LEFT_CALLS_VARIABLE
from hf_triton.runtime.request.cache_salt import CACHE_SALT, CALLER
from hf_triton.runtime.request.chat_formats import (
    MAX_HEAD,
    ChatFormat,
    ReasoningForm,
    ToolForm,
    read_counts,
    read_format,
)
from hf_triton.runtime.request.empty_final import EMPTY_FINAL
from hf_triton.runtime.request.sample_values import FILES as SAMPLE_FILES
from hf_triton.runtime.request.sample_values import MASK as SAMPLE_MASK
from hf_triton.runtime.request.sample_values import SAMPLE_TEXT, Value, sample_values
from hf_triton.runtime.request.tokenizer_question import TOKENIZER_QUESTION
from hf_triton.runtime.weights.file_hashes import RECORD_FILE, FileHashes, hash_file
from hf_triton.runtime.weights.hub_files import (
    ADAPTER_FILES,
    NotServableError,
    choose_adapter_files,
    choose_gguf_file,
    choose_model_files,
    is_safe_path,
    is_stored,
)
from hf_triton.runtime.weights.hub_token import UnusableTokenError, error_line, hub_token
from hf_triton.runtime.weights.locked_files import (
    Difference,
    LockedFile,
    added_files,
    differences,
    missing_files,
    repository_folder,
    snapshot_folder,
)
from hf_triton.text_generation.sequence.request_options import FIXED, OPTIONS
from hf_triton.version import LIBRARY_PARAMETER

__all__ = [
    "ADAPTER_FILES",
    "CACHE_SALT",
    "CALL",
    "CALLER",
    "EMPTY_FINAL",
    "ENVIRONMENT_CODE",
    "ENVIRONMENT_FILE",
    "FIXED",
    "FOLDER_VARIABLE",
    "LEFT_CALLS_VARIABLE",
    "LIBRARY_PARAMETER",
    "LIBRARY_PATH",
    "LINK_VERSION",
    "MARKER",
    "MAX_HEAD",
    "NUMPY_VARIABLE",
    "OPTIONS",
    "RECORD_FILE",
    "SAMPLE_FILES",
    "SAMPLE_MASK",
    "SAMPLE_TEXT",
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
    "Value",
    "added_files",
    "built_folder",
    "check",
    "choose_adapter_files",
    "choose_gguf_file",
    "choose_model_files",
    "differences",
    "error_line",
    "failure_file",
    "hash_file",
    "hub_token",
    "is_built",
    "is_made_private",
    "is_safe_path",
    "is_stored",
    "look_inside",
    "missing_files",
    "read_counts",
    "read_format",
    "repository_folder",
    "sample_values",
    "snapshot_folder",
]

# Where the script lies by which the server finds a model's environment.
ENVIRONMENT_CODE = LIBRARY_PATH.parent
