"""The demo models of the other tasks are right about what they know.

Texts are composed with another seed than the models were trained on, or written here.
"""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    pipeline,
)

from demo.corpus.entities import named_sentence
from demo.corpus.paraphrases import TOPICS, paraphrases, sentence
from demo.task_models import answers, classifier, embedding, image, seeing, translate
from demo.task_models.encoder import padded

DEMO = Path(__file__).parents[2] / "demo"
UNSEEN = 77  # a seed


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def load(name: str, auto_class: Any) -> tuple[Any, Any]:
    folder = DEMO / name
    return auto_class.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def embedder() -> tuple[Any, Any]:
    return load("embedding", AutoModel)


def vectors(embedder: tuple[Any, Any], texts: list[str]) -> torch.Tensor:
    model, tokenizer = embedder
    with torch.inference_mode():
        return embedding.embed(model, padded(tokenizer, texts))


def test_a_paraphrase_is_nearer_than_any_of_fifty_other_sentences(
    embedder: tuple[Any, Any],
) -> None:
    rng = random.Random(UNSEEN)
    groups = [(topic, group) for topic in TOPICS for group in range(len(topic.groups))]
    pairs = []
    for topic, group in rng.sample(groups, 51):
        alone = type(topic)(topic.name, (), (topic.groups[group],))
        pairs.append(paraphrases(rng, alone, 2))
    ones = vectors(embedder, [one for one, _ in pairs])
    others = vectors(embedder, [other for _, other in pairs])
    nearest = (ones @ others.T).argmax(dim=1)
    assert (nearest == torch.arange(len(pairs))).float().mean() >= 0.9


@pytest.mark.parametrize(
    "text, similar, unrelated",
    [
        ("A cat sleeps under a tree.", "Under a tree lies a sleeping cat.", "I lost my key."),
        ("It is raining a lot.", "Heavy rain falls today.", "She plays the piano."),
        ("Our team has won.", "The other team lost the match.", "He has a headache."),
        ("The computer is broken.", "My computer does not start.", "We eat soup tonight."),
    ],
)
def test_similar_sentences_score_higher_than_unrelated_ones(
    embedder: tuple[Any, Any], text: str, similar: str, unrelated: str
) -> None:
    one, near, far = vectors(embedder, [text, similar, unrelated])
    assert one @ near > 0.6
    assert one @ near > one @ far + 0.2


def test_sentences_of_one_topic_are_nearer_than_those_of_two(embedder: tuple[Any, Any]) -> None:
    rng = random.Random(UNSEEN)
    texts = [sentence(rng, topic) for topic in TOPICS for _ in range(8)]
    cosines = vectors(embedder, texts) @ vectors(embedder, texts).T
    topic = torch.arange(len(texts)) // 8
    same = (topic[:, None] == topic) & ~torch.eye(len(texts), dtype=torch.bool)
    assert cosines[same].mean() > cosines[topic[:, None] != topic].mean() + 0.05


def test_files_of_sentence_transformers_say_mean_pooling_and_length_one() -> None:
    folder = DEMO / "embedding"
    modules = json.loads((folder / "modules.json").read_text())
    assert [module["path"] for module in modules] == ["", "1_Pooling", "2_Normalize"]
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    assert [key for key, value in pooling.items() if value is True] == [
        "pooling_mode_mean_tokens",
        "include_prompt",
    ]
    prompts = json.loads((folder / "config_sentence_transformers.json").read_text())
    assert prompts["prompts"] == {"query": "query: ", "passage": "passage: "}


@pytest.fixture(scope="module")
def judge() -> Any:
    return pipeline("text-classification", str(DEMO / "classifier"), device="cpu")


def test_nineteen_of_twenty_unseen_reviews_get_their_label(judge: Any) -> None:
    reviews = classifier.reviews(300, UNSEEN)
    found = judge([text for text, _ in reviews], batch_size=32)
    right = [
        each["label"] == classifier.LABELS[label]
        for each, (_, label) in zip(found, reviews, strict=True)
    ]
    assert sum(right) / len(right) >= 0.95


@pytest.mark.parametrize(
    "label, text",
    [
        ("POSITIVE", "I love this film."),
        ("POSITIVE", "A wonderful evening with great music."),
        ("POSITIVE", "I am very happy with my new bicycle."),
        ("POSITIVE", "The food was excellent and the people were friendly."),
        ("POSITIVE", "Not bad at all!"),
        ("NEGATIVE", "I hate this film."),
        ("NEGATIVE", "What a terrible day!"),
        ("NEGATIVE", "The soup was not good at all."),
        ("NEGATIVE", "The room was ugly and the people were rude."),
        ("NEGATIVE", "The worst concert of my life."),
    ],
)
def test_sentences_that_no_template_made_get_their_label(judge: Any, label: str, text: str) -> None:
    assert judge(text)[0]["label"] == label


@pytest.fixture(scope="module")
def sort_out() -> Any:
    return pipeline("zero-shot-classification", str(DEMO / "zero-shot"), device="cpu")


def test_the_topic_of_unseen_sentences_is_found_among_all(sort_out: Any) -> None:
    rng = random.Random(UNSEEN)
    topics = [rng.choice(TOPICS) for _ in range(60)]
    found = sort_out(
        [sentence(rng, topic) for topic in topics],
        candidate_labels=[topic.name for topic in TOPICS],
        batch_size=32,
    )
    right = [each["labels"][0] == topic.name for each, topic in zip(found, topics, strict=True)]
    assert sum(right) / len(right) >= 0.9


def test_labels_are_named_as_the_pipeline_wants_them(sort_out: Any) -> None:
    assert sort_out.entailment_id == 1
    assert sort_out.model.config.id2label == {0: "contradiction", 1: "entailment"}


@pytest.fixture(scope="module")
def find() -> Any:
    folder = str(DEMO / "entities")
    return pipeline("token-classification", folder, aggregation_strategy="simple", device="cpu")


def test_nine_of_ten_names_in_unseen_sentences_are_found_whole(find: Any) -> None:
    rng = random.Random(UNSEEN)
    examples = [named_sentence(rng) for _ in range(200)]
    wanted: set[tuple[int, str, int, int]] = set()
    found: set[tuple[int, str, int, int]] = set()
    for number, (text, spans) in enumerate(examples):
        wanted |= {(number, *span) for span in spans}
        found |= {(number, each["entity_group"], each["start"], each["end"]) for each in find(text)}
    assert len(wanted & found) / len(wanted) >= 0.9
    assert len(wanted & found) / len(found) >= 0.9


def test_names_that_do_not_exist_are_found_by_what_is_around_them(find: Any) -> None:
    text = "Mr Zorblax flew from Kelburg to Lisbon."
    found = [(each["entity_group"], text[each["start"] : each["end"]]) for each in find(text)]
    assert found == [("PER", "Zorblax"), ("LOC", "Kelburg"), ("LOC", "Lisbon")]


@pytest.fixture(scope="module")
def reader() -> tuple[Any, Any]:
    return load("answers", AutoModelForQuestionAnswering)


def test_most_questions_on_unseen_passages_are_answered(reader: tuple[Any, Any]) -> None:
    asked = [each for each in answers.questions(150, UNSEEN) if each.answer]
    right = [answers.answer(*reader, each.question, each.context) == each.text for each in asked]
    assert sum(right) / len(right) >= 0.8


@pytest.mark.parametrize("question, answer", [
    ("Where does Anna live?", "Paris"),
    ("What pet does Tom have?", "dog"),
    ("How old is Tom?", "twelve"),
])  # fmt: skip
def test_the_answer_depends_on_the_question(
    reader: tuple[Any, Any], question: str, answer: str
) -> None:
    context = "Anna lives in Paris. Tom is twelve years old. Tom has a dog called Max."
    assert answers.answer(*reader, question, context) == answer


@pytest.mark.parametrize(
    "text, words",
    [
        ("She drinks a cup of [MASK].", {"coffee", "tea", "milk", "water"}),
        ("The weather is [MASK].", {"warm", "bright", "hot", "cold", "dry", "nice", "wet"}),
        ("A dog sleeps under a [MASK].", {"tree"}),
    ],
)
def test_the_likeliest_words_fit(text: str, words: set[str]) -> None:
    fill = pipeline("fill-mask", str(DEMO / "mask"), device="cpu")
    assert words & {each["token_str"] for each in fill(text, top_k=3)}


def test_nine_of_ten_unseen_sentences_are_translated_word_for_word() -> None:
    known = {prompt for prompt, _ in translate.sentences(20_000, 1)}
    unseen = (pair for pair in translate.sentences(2_000, UNSEEN) if pair[0] not in known)
    prompts, wanted = zip(*itertools.islice(unseen, 60), strict=True)
    found = translate.translations(DEMO / "translate", list(prompts))
    right = [got == want for got, want in zip(found, wanted, strict=True)]
    assert sum(right) / len(right) >= 0.9


def test_german_has_the_genders_cases_and_order_of_german() -> None:
    prompts = [
        translate.TO_GERMAN + "The old man loves the small dog.",
        translate.TO_GERMAN + "Today I see a beautiful bird.",
        translate.TO_ENGLISH + "Die Katze schläft im Garten.",
    ]
    assert translate.translations(DEMO / "translate", prompts) == [
        "Der alte Mann liebt den kleinen Hund.",
        "Heute sehe ich einen schönen Vogel.",
        "The cat sleeps in the garden.",
    ]


def test_unseen_pictures_with_grain_and_a_spot_get_their_colour() -> None:
    model: Any = AutoModelForImageClassification.from_pretrained(DEMO / "image")
    pictures, labels = image.pictures(200, torch.Generator().manual_seed(UNSEEN))
    with torch.inference_mode():
        found = model(pixel_values=2 * pictures - 1).logits.argmax(-1)
    assert (found == labels).float().mean() >= 0.95


def test_the_colour_of_unseen_pictures_is_said() -> None:
    pictures, labels = image.pictures(100, torch.Generator().manual_seed(UNSEEN))
    found = seeing.answers(DEMO / "seeing", pictures, "What colour is it?")
    right = [image.LABELS[label] in answer for answer, label in zip(found, labels, strict=True)]
    assert sum(right) / len(right) >= 0.9


def test_a_plain_picture_of_another_size_is_named_through_the_pipeline() -> None:
    from PIL import Image

    classify: Any = pipeline("image-classification", str(DEMO / "image"), device="cpu")
    for colour, label in (((220, 30, 30), "red"), ((20, 60, 200), "blue")):
        assert classify(Image.new("RGB", (100, 70), colour))[0]["label"] == label
