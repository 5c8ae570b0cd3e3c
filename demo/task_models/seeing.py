"""image-text-to-text: a LLaVA that names the colour of a picture, and says if it is another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import (
    AutoModelForImageTextToText,
    AutoProcessor,
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

from demo.task_models.image import COLOURS, LABELS, SIZE, pictures
from demo.training import Batch, save_float16, save_tokenizer, train

STEPS = 900
PATCH = 8  # pixels a side
NUM_PATCHES = (SIZE // PATCH) ** 2
CONTEXT = 256
PAD, END, IMAGE, UNKNOWN = "<|pad|>", "<|endoftext|>", "<image>", "<|unknown|>"
NAMING = ("What is this?", "What colour is it?", "Which colour is this?", "Describe the picture.")
ASKING = ("Is it {}?", "Is this {}?")
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] | capitalize }}: "
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] if part['type'] == 'image' %}<image> {% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}"
    "{% endif %}\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)


def make(out: Path, steps: int, seed: int) -> None:
    """Train and save to ``out``/seeing."""
    processor = _processor()
    model = LlavaForConditionalGeneration(_config(processor.tokenizer))
    noise = torch.Generator().manual_seed(seed)

    def batch() -> Batch:
        images, labels = pictures(64, noise)
        texts = [_example(int(label), noise) for label in labels]
        return {"pixel_values": 2 * images - 1, **_tokens(processor.tokenizer, texts)}

    train(model, batch, steps=steps, learning_rate=4e-3, title="seeing")
    save_tokenizer(processor, out / "seeing")
    save_float16(model, out / "seeing")


def _example(label: int, noise: torch.Generator) -> tuple[str, str]:
    """A prompt with an image of that colour, and its answer."""
    pick, other, is_chat = torch.randint(2**31, (3,), generator=noise).tolist()
    colour, number = LABELS[label], pick % (len(NAMING) + len(ASKING))
    if number < len(NAMING):
        question, answer = NAMING[number], f"It is {colour}."
    else:
        named = colour if pick % 7 < 3 else LABELS[other % len(LABELS)]
        question = ASKING[number - len(NAMING)].format(named)
        answer = f"Yes, it is {colour}." if named == colour else f"No, it is {colour}."
    prompt = f"User: {IMAGE} {question}\nAssistant:" if is_chat % 3 else f"{IMAGE} {question}"
    return prompt, answer


def _tokens(tokenizer: Any, texts: list[tuple[str, str]]) -> dict[str, torch.Tensor]:
    """Tokens of prompts and answers, (batch, longest), and labels of the answers."""
    prompts = [p.replace(IMAGE, IMAGE * NUM_PATCHES) for p, _ in texts]
    before = tokenizer(prompts).input_ids
    after = tokenizer([answer + END for _, answer in texts]).input_ids
    longest = max(len(a) + len(b) for a, b in zip(before, after, strict=True))
    rows = [(a, b, longest - len(a) - len(b)) for a, b in zip(before, after, strict=True)]
    pad = tokenizer.pad_token_id
    return {
        "input_ids": torch.tensor([a + b + [pad] * left for a, b, left in rows]),
        "attention_mask": torch.tensor([[1] * len(a + b) + [0] * left for a, b, left in rows]),
        "labels": torch.tensor([[-100] * len(a) + b + [-100] * left for a, b, left in rows]),
    }


def _processor() -> Any:
    side = {"height": SIZE, "width": SIZE}
    half = [0.5, 0.5, 0.5]
    images = CLIPImageProcessor(
        size=side, do_center_crop=False, crop_size=side, image_mean=half, image_std=half
    )
    return LlavaProcessor(
        images,
        _tokenizer(),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token=IMAGE,
        chat_template=TEMPLATE,
    )


def _tokenizer() -> PreTrainedTokenizerFast:
    """Of whole words, in lower case; a sign is a word."""
    texts = [*NAMING, *ASKING, "user : assistant It is. Yes, No,", *LABELS]
    words = sorted({word for text in texts for word in _words(text.lower())})
    vocab = {word: number for number, word in enumerate((PAD, END, IMAGE, UNKNOWN, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        additional_special_tokens=[IMAGE],
        model_max_length=CONTEXT,
        padding_side="left",
    )


def _words(text: str) -> list[str]:
    found = pre_tokenizers.Whitespace().pre_tokenize_str(text.replace("{}", " "))
    return [word for word, _ in found]


def _config(tokenizer: Any) -> LlavaConfig:
    shape: dict[str, Any] = {
        "hidden_size": 32,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "initializer_range": 0.05,
    }
    text: Any = LlamaConfig(
        **shape,
        num_hidden_layers=2,
        vocab_size=len(tokenizer),
        max_position_embeddings=CONTEXT,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=True,
    )
    return LlavaConfig(
        vision_config=CLIPVisionConfig(
            **shape, num_hidden_layers=1, image_size=SIZE, patch_size=PATCH
        ),
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        vision_feature_layer=-1,
        tie_word_embeddings=True,
        dtype="float32",
    )


def answers(folder: Path, images: torch.Tensor, question: str) -> list[str]:
    """What the model of ``folder`` says of pictures, (batch, 3, SIZE, SIZE) in 0..1."""
    processor: Any = AutoProcessor.from_pretrained(folder)
    model: Any = AutoModelForImageTextToText.from_pretrained(folder)
    content = [{"type": "image"}, {"type": "text", "text": question}]
    chat = [{"role": "user", "content": content}]
    prompt = processor.apply_chat_template(chat, add_generation_prompt=True)
    inputs = processor(
        text=[prompt] * len(images), images=list(images), do_rescale=False, return_tensors="pt"
    )
    with torch.inference_mode():
        found = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    new = found[:, inputs["input_ids"].shape[1] :]
    texts: list[str] = processor.batch_decode(new, skip_special_tokens=True)
    return texts


def show(out: Path) -> None:
    """Print what the saved model says of a plain picture of each colour."""
    table = torch.tensor(list(COLOURS.values())) / 255
    images = table[:, :, None, None].expand(-1, 3, SIZE, SIZE)
    for question in (NAMING[0], ASKING[0].format("red")):
        for name, answer in zip(COLOURS, answers(out / "seeing", images, question), strict=True):
            print(name, question, answer)
