"""question-answering: a BERT that finds in a passage the words that answer a question."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, BertForQuestionAnswering

from demo.corpus.passages import Asked, asked
from demo.task_models.encoder import BatchSampler, load_base, padded
from demo.training import Batch, save, train

STEPS = 1200
LONGEST_ANSWER = 15  # tokens, as transformers' pipeline has it
PASSAGE = (
    "Anna lives in Paris. She works as a teacher. On Monday Anna bought a lamp for twenty coins. "
    "In the garden Tom found a key."
)
QUESTIONS = (
    "Where does Anna live?",
    "When did Anna buy the lamp?",
    "How much did Anna pay for the lamp?",
    "Who found the key?",
    "Where did Tom find the key?",
)


def questions(num_questions: int, seed: int) -> list[Asked]:
    """Return questions with their passages."""
    rng = random.Random(seed)
    return [asked(rng) for _ in range(num_questions)]


def make(out: Path, steps: int, seed: int) -> None:
    """Train from the fill-mask model and save to ``out``/answers."""
    tokenizer, model = load_base(out, BertForQuestionAnswering)
    draw = BatchSampler(questions(12_000, seed), 32, seed)

    def batch() -> Batch:
        return with_answer_positions(tokenizer, draw())

    train(model, batch, steps=steps, learning_rate=4e-3, title="answers")
    save(model, tokenizer, out / "answers")


def with_answer_positions(tokenizer: Any, examples: Sequence[Asked]) -> Batch:
    """Return the pairs with the first and last token of each answer; [CLS] where there is none."""
    pairs = [(each.question, each.context) for each in examples]
    batch = padded(tokenizer, pairs, return_offsets_mapping=True, truncation="only_second")
    places = torch.zeros(2, len(examples), dtype=torch.long)
    in_context = batch["token_type_ids"].bool() & batch["attention_mask"].bool()
    for row, each in enumerate(examples):
        if each.answer is None:
            continue
        starts, ends = batch["offset_mapping"][row].T  # (seq,) each
        within = in_context[row] & (starts >= each.answer.start) & (ends <= each.answer.end)
        columns = (within & (ends > starts)).nonzero().flatten()
        if len(columns):  # else it was cut off
            places[:, row] = columns[[0, -1]]
    del batch["offset_mapping"]
    return {**batch, "start_positions": places[0], "end_positions": places[1]}


def answer(model: Any, tokenizer: Any, question: str, context: str) -> str:
    """Return the likeliest words of the context, at most LONGEST_ANSWER tokens."""
    found = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
    offsets = found.pop("offset_mapping")[0].tolist()
    with torch.inference_mode():
        output = model(**found)
    scores = output.start_logits[0][:, None] + output.end_logits[0]  # (start, end)
    size = len(scores)
    spans = torch.ones(size, size, dtype=torch.bool).triu().tril(LONGEST_ANSWER - 1)
    spans &= found["token_type_ids"][0].bool()[:, None]
    spans[:, -1] = False  # [SEP]
    best = int(scores.masked_fill(~spans, -torch.inf).argmax())
    return context[offsets[best // size][0] : offsets[best % size][1]]


def show(out: Path) -> None:
    """Print what the saved model answers to some questions."""
    folder = out / "answers"
    model = AutoModelForQuestionAnswering.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for question in QUESTIONS:
        print(question, answer(model, tokenizer, question, PASSAGE))
