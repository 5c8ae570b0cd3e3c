"""Every key of the files that sentence-transformers saves, releases 2 to 6, and what becomes of it:
followed, harmless, or refused at load. docs/encoders.md shows the same table.

Knows names alone; reading.py follows them. Source: the ``config_keys`` of sentence-transformers'
modules, the parameters of their ``__init__``, and ``_parse_model_config`` of its models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hf_triton.runtime.errors import LoadError

# The kind of unlisted keys. Sentence-transformers fails at unknown keys of most files.
Others = Literal["refused", "harmless", "followed"]


@dataclass(frozen=True)
class Keys:
    """The keys of one file, or of one object in it. ``refused`` are those that would change
    answers, with the reason; a null changes nothing.
    """

    followed: tuple[str, ...] = ()
    harmless: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    others: Others = "refused"

    def check(self, where: str, found: Mapping[str, Any]) -> None:
        for key, value in found.items():
            if value is None or key in self.followed or key in self.harmless:
                continue
            if key in self.refused:
                raise LoadError(f"{where}: {key} is not served here: {self.refused[key]}")
            if self.others == "refused":
                known = ", ".join(sorted((*self.followed, *self.harmless)))
                raise LoadError(f"{where}: {key} is not known here, known: {known}")


HUB = (
    *("trust_remote_code", "token", "use_auth_token", "revision", "code_revision"),
    *("cache_dir", "cache_folder", "local_files_only", "force_download", "proxies"),
)
_OTHER_FOLDER = "it names files outside of the module's folder"

MODULES_FILE = "modules.json"
WHOLE_FILE = "config_sentence_transformers.json"
STANFORD_FILE = "artifact.metadata"  # of Stanford's ColBERT
# The transformer's file, under its name and those that old releases gave it.
TRANSFORMER_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# In the order in which several are put together.
POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

# Of models of many vectors: PyLate's own, and those of a transformer's file.
PYLATE_KEYS = (
    *("query_prefix", "document_prefix", "query_length", "document_length", "skiplist_words"),
    *("do_query_expansion", "attend_to_expansion_tokens", "attend_to_mask_tokens"),
)
LATE_KEYS = ("query_length", "document_length", "query_expansion")

WHOLE = Keys(
    followed=(
        *("model_type", "prompts", "default_prompt_name", "activation_fn"),
        *("similarity_fn_name", "truncate_dim", "max_active_dims", "requirements"),
        *PYLATE_KEYS,
    ),
    # The second asks for float32 in single layers, which a narrower dtype rounds otherwise.
    harmless=("__version__", "keep_in_fp32_modules"),
    others="harmless",
)
TRANSFORMER = Keys(
    followed=(
        *("max_seq_length", "do_lower_case", "transformer_task", "module_output_name"),
        *("modality_config", "processing_kwargs"),
        *("model_args", "model_kwargs", "tokenizer_args", "processor_kwargs"),
        *("config_args", "config_kwargs", *LATE_KEYS),
    ),
    harmless=("unpad_inputs", "backend", "cache_dir"),
    refused={"tokenizer_name_or_path": _OTHER_FOLDER},
)
MODEL_KWARGS = Keys(
    harmless=(
        *HUB,
        *("dtype", "torch_dtype", "attn_implementation", "device_map", "low_cpu_mem_usage"),
        *("add_pooling_layer", "use_cache", "use_safetensors", "provider", "file_name", "export"),
    ),
)
CONFIG_KWARGS = Keys(harmless=HUB, refused={"subfolder": _OTHER_FOLDER}, others="followed")
PROCESSOR_KWARGS = Keys(
    harmless=HUB,
    refused=dict.fromkeys(
        ("subfolder", "tokenizer_file", "vocab_file", "merges_file", "spm_file"), _OTHER_FOLDER
    ),
    others="followed",
)
MODALITIES = Keys(
    followed=("text",),
    refused={"message": "its texts are messages of a chat"},
    others="harmless",
)
MODALITY = Keys(followed=("method", "method_output_name"), harmless=("format",))
PROCESSING = Keys(followed=("text", "common"), others="harmless")
TEXT = Keys(
    followed=("max_length", "truncation", "add_special_tokens"),
    harmless=(
        *("padding", "padding_side", "pad_to_multiple_of", "return_tensors", "verbose"),
        *("return_attention_mask", "return_length", "return_offsets_mapping"),
        *("return_special_tokens_mask", "logits_to_keep"),
    ),
)

POOLING = Keys(
    followed=("pooling_mode", *POOLING_FLAGS, "include_prompt"),
    harmless=("embedding_dimension", "word_embedding_dimension"),
)
DENSE = Keys(
    followed=(
        *("in_features", "out_features", "bias", "activation_function", "use_residual"),
        *("module_input_name", "module_output_name"),
    ),
    others="harmless",
)
LAYER_NORM = Keys(followed=("dimension",))
NORMALIZE = Keys(followed=("module_input_name", "module_output_name"), others="harmless")
DROPOUT = Keys(harmless=("dropout",))
SPLADE = Keys(
    followed=("pooling_strategy", "activation_function"),
    harmless=("embedding_dimension", "word_embedding_dimension", "chunk_size"),
)
EXPANSION = Keys(followed=("strategy", "attend", "length", "token"))
MASK = Keys(
    followed=("skiplist_words", "skiplist_tasks"),
    refused={"keep_only_token_ids": "it is for pages of images"},
)

TRANSFORMER_MODULE, POOLING_MODULE, SPLADE_MODULE = "Transformer", "Pooling", "SpladePooling"
MASK_MODULE, TRAINING_MODULE = "MultiVectorMask", "Dropout"
POST_POOLING = {"Dense": DENSE, "LayerNorm": LAYER_NORM, "Normalize": NORMALIZE}
# Those with a config.json in a folder of their own.
MODULES = {
    POOLING_MODULE: POOLING,
    SPLADE_MODULE: SPLADE,
    MASK_MODULE: MASK,
    **POST_POOLING,
    TRAINING_MODULE: DROPOUT,
}
# By other names that files give them.
ALIASES = {
    "MLMTransformer": TRANSFORMER_MODULE,
    "pylate.models.Dense.Dense": "sentence_transformers.Dense",
}
SERVED_MODULES = (TRANSFORMER_MODULE, *MODULES, "MLMTransformer")
WORD_SCORE = (
    "it is a decoder that reranks by the score of a word, as yes against no, and has no classifier"
)
_NO_TRANSFORMER = "it looks words up, without a transformer"
_AFTER_TRANSFORMER = "it computes on the tokens' states before pooling"
REFUSED_MODULES = {
    "LogitScore": WORD_SCORE,
    **dict.fromkeys(
        ("BoW", "StaticEmbedding", "SparseStaticEmbedding", "WordEmbeddings", "WordWeights"),
        _NO_TRANSFORMER,
    ),
    **dict.fromkeys(("CNN", "LSTM", "WeightedLayerPooling"), _AFTER_TRANSFORMER),
    "SparseAutoEncoder": "it makes dense embeddings sparse",
    **dict.fromkeys(
        ("HierarchicalTokenPooling", "LambdaTokenPooling"), "it puts tokens' vectors together"
    ),
    **dict.fromkeys(("Router", "Asym"), "it has several models in one"),
    "CLIPModel": "it embeds images too",
}
