"""``/v1/completions``: prompts in, texts out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from generator.spec.task_sets import COMPLETION_TASKS
from hf_triton.ports.openai.openapi import EVENTS, Operation
from hf_triton.ports.openai.routes.answers import Choice, ChoicesWriter, Endpoint, GenerationUsage
from hf_triton.ports.openai.schema.body import Filled, Integer, kind_of, present, read
from hf_triton.ports.openai.schema.errors import bad_field
from hf_triton.ports.openai.schema.logprobs import TextLogprobs
from hf_triton.ports.openai.schema.request import Generation, GenerationRequest, TensorValue, asked

DEFAULT_MAX_TOKENS = 16  # OpenAI's
MAX_PROMPTS = 256
_LONGEST = 2**20  # tokens; no model's context is longer by far
_TokenId = Annotated[int, Meta(ge=0, lt=2**31)]  # what a tensor of them holds
_Ids = Annotated[list[_TokenId], Meta(min_length=1, max_length=_LONGEST)]


class CompletionRequest(Generation, kw_only=True):
    """OpenAI's: ``prompt`` is a text or a list of token ids, or a list of such."""

    prompt: Filled | Annotated[list[_TokenId | Filled | _Ids], Meta(min_length=1)]
    echo: bool | None = None
    logprobs: Integer | None = None
    prompt_logprobs: Integer | None = None
    return_token_ids: bool | None = None

    def prompts(self) -> list[dict[str, TensorValue]]:
        given = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        num_ids = sum(isinstance(one, int) for one in given)
        if 0 < num_ids < len(given) or (not num_ids and len(given) > MAX_PROMPTS):
            allowed = f"a text, a list of token ids, or 1 to {MAX_PROMPTS} texts or such lists"
            raise bad_field("prompt", f"a list of {len(given)}", allowed)
        if num_ids > _LONGEST:
            raise bad_field("prompt", f"a prompt of {num_ids} tokens", f"at most {_LONGEST}")
        listed: Any = [given] if num_ids else given
        return [
            {"text_input": one} if isinstance(one, str) else {"input_ids": tuple(one)}
            for one in listed
        ]


class TextChoice(Struct, kw_only=True):
    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: Any = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Completion(Struct, kw_only=True):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: GenerationUsage


def read_completion(given: Mapping[str, Any]) -> GenerationRequest:
    body = read(CompletionRequest, given)
    sampling = present(body, "max_tokens", "min_tokens", "n")
    nothing_more = sampling.get("max_tokens") == 0
    if nothing_more and not body.echo and body.prompt_logprobs is None:
        raise bad_field("max_tokens", "0", "1 and more, or 0 with echo true or prompt_logprobs")
    echoes = bool(body.echo) and (body.logprobs is not None or nothing_more)
    if echoes and body.stream and sampling.get("n", 1) != 1:
        raise bad_field("n", kind_of(sampling["n"]), "1 with echo, logprobs and stream")
    prompts = [{**prompt, "exclude_input_in_output": not body.echo} for prompt in body.prompts()]
    # OpenAI's default length, unless more is asked for at least.
    at_least = max(DEFAULT_MAX_TOKENS, sampling.get("min_tokens", 0))
    lengths = {} if "max_tokens" in sampling else {"max_tokens": at_least}
    return asked(body, prompts, lengths, body.logprobs, echoes=echoes)


class CompletionWriter(ChoicesWriter):
    object = ("text_completion", "text_completion")
    answer_type = Completion

    def write(self, choice: Choice) -> TextChoice:
        logprobs = None
        if choice.positions is not None:
            logprobs = TextLogprobs.of(choice.positions, self.asked.num_logprobs or 0)
        return TextChoice(
            index=choice.index,
            text=choice.text,
            logprobs=logprobs,
            finish_reason=choice.finish_reason,
            token_ids=choice.ids,
            **choice.of_prompt,
        )


COMPLETIONS = Endpoint(
    *("/v1/completions", COMPLETION_TASKS, "cmpl-", read_completion),
    CompletionWriter,
    Operation("Continue texts", Completion, CompletionRequest, also=(EVENTS,)),
    by_model=True,
)
