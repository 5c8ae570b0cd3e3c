"""The library's rules that server and generator share; none of it needs torch or Triton."""

from __future__ import annotations

from hf_triton.python_env.find_environment import ENVIRONMENT_FILE as ENVIRONMENT_FILE
from hf_triton.python_env.find_environment import FOLDER_VARIABLE as FOLDER_VARIABLE
from hf_triton.python_env.find_environment import LIBRARY_PATH as LIBRARY_PATH
from hf_triton.python_env.find_environment import MARKER as MARKER
from hf_triton.python_env.find_environment import NUMPY_VARIABLE as NUMPY_VARIABLE
from hf_triton.python_env.find_environment import BrokenEnvironmentError as BrokenEnvironmentError
from hf_triton.python_env.find_environment import built_folder as built_folder
from hf_triton.python_env.find_environment import check as check
from hf_triton.python_env.find_environment import failure_file as failure_file
from hf_triton.python_env.find_environment import is_built as is_built
from hf_triton.python_env.find_environment import look_inside as look_inside
from hf_triton.runtime.disk_cache import is_made_private as is_made_private
from hf_triton.runtime.link import protocol
from hf_triton.runtime.request import request_parameters
from hf_triton.runtime.request.chat_formats import MAX_HEAD as MAX_HEAD
from hf_triton.runtime.request.chat_formats import ChatFormat as ChatFormat
from hf_triton.runtime.request.chat_formats import ReasoningForm as ReasoningForm
from hf_triton.runtime.request.chat_formats import ToolForm as ToolForm
from hf_triton.runtime.request.chat_formats import read_counts as read_counts
from hf_triton.runtime.request.chat_formats import read_format as read_format
from hf_triton.runtime.request.request_parameters import CACHE_SALT as CACHE_SALT
from hf_triton.runtime.request.request_parameters import CALL as CALL
from hf_triton.runtime.request.request_parameters import CALLER as CALLER
from hf_triton.runtime.request.request_parameters import EMPTY_FINAL as EMPTY_FINAL
from hf_triton.runtime.request.request_parameters import TOKENIZER_QUESTION as TOKENIZER_QUESTION
from hf_triton.runtime.request.sample_values import SAMPLE_FILES as SAMPLE_FILES
from hf_triton.runtime.request.sample_values import SAMPLE_MASK as SAMPLE_MASK
from hf_triton.runtime.request.sample_values import SAMPLE_TEXT as SAMPLE_TEXT
from hf_triton.runtime.request.sample_values import Value as Value
from hf_triton.runtime.request.sample_values import sample_values as sample_values
from hf_triton.runtime.weights.hub_files import ADAPTER_FILES as ADAPTER_FILES
from hf_triton.runtime.weights.hub_files import NotServableError as NotServableError
from hf_triton.runtime.weights.hub_files import UnusableTokenError as UnusableTokenError
from hf_triton.runtime.weights.hub_files import choose_adapter_files as choose_adapter_files
from hf_triton.runtime.weights.hub_files import choose_gguf_file as choose_gguf_file
from hf_triton.runtime.weights.hub_files import choose_model_files as choose_model_files
from hf_triton.runtime.weights.hub_files import error_line as error_line
from hf_triton.runtime.weights.hub_files import hub_token as hub_token
from hf_triton.runtime.weights.hub_files import is_safe_path as is_safe_path
from hf_triton.runtime.weights.hub_files import is_stored as is_stored
from hf_triton.runtime.weights.locked_files import Difference as Difference
from hf_triton.runtime.weights.locked_files import FileHashes as FileHashes
from hf_triton.runtime.weights.locked_files import LockedFile as LockedFile
from hf_triton.runtime.weights.locked_files import added_files as added_files
from hf_triton.runtime.weights.locked_files import differences as differences
from hf_triton.runtime.weights.locked_files import hash_file as hash_file
from hf_triton.runtime.weights.locked_files import repository_folder as repository_folder
from hf_triton.runtime.weights.locked_files import snapshot_folder as snapshot_folder
from hf_triton.text_generation.sequence.request_options import FIXED as FIXED
from hf_triton.text_generation.sequence.request_options import OPTIONS as OPTIONS
from hf_triton.version import LIBRARY_PARAMETER as LIBRARY_PARAMETER

LINK_VERSION = protocol.VERSION
LEFT_CALLS_VARIABLE = request_parameters.VARIABLE
# Where the script lies by which the server finds a model's environment.
ENVIRONMENT_CODE = LIBRARY_PATH.parent
