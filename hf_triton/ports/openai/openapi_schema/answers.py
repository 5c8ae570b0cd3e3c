"""What is answered, as types of which the served schema is made. An answer may have more fields."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

Json = dict[str, Any]


class ErrorText(Struct):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(Struct):
    """OpenAI's error."""

    error: ErrorText


class MessageErrorText(Struct):
    """What went wrong."""

    type: str
    message: str
    details: Json | UnsetType = UNSET


class MessageError(Struct):
    """Anthropic's error."""

    type: Literal["error"]
    error: MessageErrorText
    request_id: str


class HubError(Struct):
    """That of Hugging Face's servers."""

    error: str
    error_type: str


class Health(Struct):
    """Triton answers."""

    status: Literal["ok"]


class Version(Struct):
    """Of hf-triton."""

    version: str


class Document(Struct):
    """OpenAPI's."""

    openapi: str
    paths: Json


class Model(Struct):
    """One model; ``parent`` is that of an adapter, ``root`` the own name of one that has others;
    ``max_model_len`` and ``max_input_tokens`` are the tokens of its context, ``state`` is that of
    one that is loaded on demand.
    """

    id: str
    object: Literal["model"]
    display_name: str
    created: int
    created_at: str
    owned_by: str
    root: str
    task: str
    type: str
    parent: str | UnsetType = UNSET
    max_model_len: int | UnsetType = UNSET
    max_input_tokens: int | UnsetType = UNSET
    state: Literal["asleep", "loading", "loaded", "leaving"] | UnsetType = UNSET


class Models(Struct):
    """Those that are ready."""

    object: Literal["list"]
    data: list[Model]
    has_more: Literal[False]
    first_id: str | None
    last_id: str | None


class Usage(Struct):
    """Tokens."""

    prompt_tokens: int
    total_tokens: int


class GenerationUsage(Usage):
    """Tokens of prompts and answers."""

    completion_tokens: int


class Token(Struct):
    """A token and the logarithm of its probability."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprobs(Token):
    """The sampled token, and the likeliest at its place."""

    top_logprobs: list[Token]


class ChatLogprobs(Struct):
    """Of each token."""

    content: list[TokenLogprobs]
    refusal: None


class Function(Struct):
    """A call's function; ``arguments`` are JSON."""

    name: str
    arguments: str


class ToolCall(Struct):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: Function


class ChatMessage(Struct):
    """The assistant's."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCall] | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class ChatChoice(Struct):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class ChatCompletion(Struct):
    """All answers."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: GenerationUsage


class TextLogprobs(Struct):
    """Of each token; the first token of a prompt has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class TextChoice(Struct):
    """One answer."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: str | None


class Completion(Struct):
    """All answers."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: GenerationUsage


class GeneratedToken(Struct):
    """One of a text: a special one adds nothing to it."""

    id: int
    text: str
    logprob: float | None
    special: bool


class GeneratedDetails(Struct):
    """Its tokens; ``prefill`` are the prompt's."""

    finish_reason: Literal["length", "eos_token", "stop_sequence"]
    generated_tokens: int
    seed: int | None
    prefill: list[Json]
    tokens: list[GeneratedToken]
    top_tokens: list[list[GeneratedToken]] | UnsetType = UNSET


class Generated(Struct):
    """A text."""

    generated_text: str
    details: GeneratedDetails | UnsetType = UNSET


Generations = list[Generated]


class Response(Struct):
    """OpenAI's response."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete", "failed"]
    model: str
    output: list[Json]
    usage: Json | None
    error: Json | None


class Deleted(Struct):
    """A response that is no longer kept."""

    id: str
    object: Literal["response.deleted"]
    deleted: bool


class InputItems(Struct):
    """Of a response: a page of them."""

    object: Literal["list"]
    data: list[Json]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(Struct):
    """Tokens of a prompt."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class MessageUsage(Struct):
    """Tokens."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class Message(Struct):
    """Anthropic's message."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Json]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(Struct):
    """Tokens of a prompt."""

    input_tokens: int


class Tokens(Struct):
    """Of a prompt."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(Struct):
    """A text."""

    prompt: str


class TokenizerInfo(Struct):
    """``tokenizer_config.json``."""

    tokenizer_class: str
    chat_template: str | None
    max_model_len: int
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None


class Embedding(Struct):
    """One text's vector: numbers, or their float32 in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Embeddings(Struct):
    """Of all texts."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


Vectors = list[list[float]]
Similarities = list[float]


class Info(Struct):
    """Of one model."""

    model_id: str
    model_pipeline_tag: str
    max_client_batch_size: int
    router: str
    version: str
    model_sha: None = None
    max_best_of: int | UnsetType = UNSET
    max_input_tokens: int | UnsetType = UNSET
    max_total_tokens: int | UnsetType = UNSET


class Ranked(Struct):
    """A document, by its place in the request."""

    index: int
    relevance_score: float
    document: Json | UnsetType = UNSET


class Ranking(Struct):
    """The best first."""

    id: str
    model: str
    results: list[Ranked]
    usage: Usage


class RankedPassage(Struct):
    """A passage, by its place in the request."""

    index: int
    logit: float


class Rankings(Struct):
    """The best first."""

    rankings: list[RankedPassage]
    usage: Usage


class TeiRanked(Struct):
    """A text, by its place in the request."""

    index: int
    score: float
    text: str | UnsetType = UNSET


EitherRanking = Ranking | list[TeiRanked]


class Prediction(Struct):
    """A label."""

    label: str
    score: float


Predicted = list[Prediction | list[Prediction]]


class Segment(Struct):
    """Of a transcript: from when to when in seconds, and how sure the model is of it."""

    id: int
    start: float
    end: float
    text: str
    seek: int
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class Transcript(Struct):
    """What was heard; ``verbose_json`` has more."""

    text: str
    task: str | UnsetType = UNSET
    language: str | UnsetType = UNSET
    duration: float | UnsetType = UNSET
    segments: list[Segment] | UnsetType = UNSET


class Chunk(Struct):
    """Of what was heard: from when to when in seconds."""

    text: str
    timestamp: list[float]


class Heard(Struct):
    """As the Hub tells of it."""

    text: str
    chunks: list[Chunk] | UnsetType = UNSET


# Texts; or each text's vector, similarity or labels; or what was heard.
OfOneModel = list[Generated | float | list[float | Prediction]] | Heard


class Score(Struct):
    """Of one pair."""

    index: int
    object: Literal["score"]
    score: float


class Scores(Struct):
    """Of all pairs."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]
    usage: Usage


class Label(Struct):
    """One text's best label, and the probability of each."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class Labels(Struct):
    """Of all texts."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Label]
    usage: Usage
