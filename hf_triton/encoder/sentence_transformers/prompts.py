"""The texts that are put before inputs, and how many tokens they take up there."""

from __future__ import annotations

from hf_triton.runtime.errors import RequestError

from ..texts.tokenization import Tokenization
from .reading import SentenceFiles

# The uses of a text, and what models call their prompts for each.
USES = {
    "search_query": ("query",),
    "search_document": ("document", "passage"),
    "classification": ("Classification",),
    "clustering": ("Clustering",),
}


class Prompts:
    """A model's prompts. The request's name wins over the option, the option over the default."""

    def __init__(
        self, files: SentenceFiles, option: str | None, tokenization: Tokenization
    ) -> None:
        self._named, name = dict(files.prompts), files.default_prompt_name
        default = "" if name is None else self._named[name]
        self._default = default if option is None else option
        # The tokens that a prompt takes up before a text, special ones in front of it included.
        # Source: sentence-transformers, base/modules/transformer.py, ``_get_prompt_length``.
        self._skipped = {"": 0}
        if not files.include_prompt:
            for prompt in filter(None, (self._default, *self._named.values())):
                ids = tokenization.encode("prompt", prompt, truncate=True).input_ids
                ends_special = bool(ids) and ids[-1] in tokenization.tokenizer.all_special_ids
                self._skipped[prompt] = len(ids) - ends_special

    def text(self, name: str | None, use: str | None = None) -> str:
        """The prompt of a request that names one; an empty name is none. Without a name the one for
        the text's ``use``, where the model has it. Raises RequestError.
        """
        if name is None:
            names = () if use is None else (use, *USES[use])
            return next((self._named[n] for n in names if n in self._named), self._default)
        if name and name not in self._named:
            known = ", ".join(self._named)
            allowed = f"allowed: {known}" if known else "this model has no prompts"
            raise RequestError(f"prompt_name: got an unknown name; {allowed}")
        return self._named[name] if name else ""

    def num_skipped(self, prompt: str) -> int:
        return self._skipped.get(prompt, 0)
