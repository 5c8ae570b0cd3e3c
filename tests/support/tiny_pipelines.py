"""A tiny model with random weights for each pipeline that is tested, saved as a user's would be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.support.tiny_encoders import tiny_encoder, tiny_tokenizer

SAMPLING_RATE = 16_000
_SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}


def vit(folder: Path) -> None:
    """A classifier of four labels for images of 32 x 32."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    config = ViTConfig(
        **_SHAPE,
        image_size=32,
        patch_size=8,
        id2label=dict(enumerate(["cat", "dog", "fox", "owl"])),
    )
    save(ViTForImageClassification, config, folder)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)


def clip(folder: Path) -> None:
    """Images and texts in one space."""
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

    tokenizer = tiny_tokenizer("bert")
    text = {
        **_SHAPE,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 32,
        "eos_token_id": tokenizer.convert_tokens_to_ids("."),  # a text is what stands at its end
    }
    vision = {**_SHAPE, "image_size": 32, "patch_size": 8}
    save(CLIPModel, CLIPConfig(text_config=text, vision_config=vision, projection_dim=16), folder)
    tokenizer.save_pretrained(folder)
    size = {"height": 32, "width": 32}
    CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=size).save_pretrained(folder)


def wav2vec2_ctc(folder: Path) -> None:
    """Speech recognition over a vocabulary of letters."""
    from transformers import Wav2Vec2CTCTokenizer, Wav2Vec2ForCTC

    words = ["<pad>", "<s>", "</s>", "<unk>", "|", *"abcdefghijklmnopqrstuvwxyz"]
    vocabulary = folder / "vocab.json"
    vocabulary.write_text(json.dumps({word: index for index, word in enumerate(words)}))
    Wav2Vec2CTCTokenizer(str(vocabulary)).save_pretrained(folder)
    save(Wav2Vec2ForCTC, _wav2vec2_config(vocab_size=len(words)), folder)
    _save_feature_extractor(folder)


def wav2vec2_classifier(folder: Path) -> None:
    """A classifier of three sounds."""
    from transformers import Wav2Vec2ForSequenceClassification

    labels = dict(enumerate(["yes", "no", "silence"]))
    config = _wav2vec2_config(id2label=labels, classifier_proj_size=16)
    save(Wav2Vec2ForSequenceClassification, config, folder)
    _save_feature_extractor(folder)


def bert_classifier(folder: Path) -> None:
    tiny_encoder("bert", "AutoModelForSequenceClassification", folder, num_labels=3)


def bert_nli(folder: Path) -> None:
    labels = {0: "contradiction", 1: "neutral", 2: "entailment"}
    names = {name: index for index, name in labels.items()}
    auto_class = "AutoModelForSequenceClassification"
    tiny_encoder("bert", auto_class, folder, id2label=labels, label2id=names)


def bert_hidden(folder: Path) -> None:
    tiny_encoder("bert", "AutoModel", folder)


def bert_mask(folder: Path) -> None:
    tiny_encoder("bert", "AutoModelForMaskedLM", folder)


def llama(folder: Path) -> None:
    """A decoder with a chat template."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tiny_tokenizer("bert")
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }} . {% endfor %}"
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        **_SHAPE,
        vocab_size=len(tokenizer),
        max_position_embeddings=64,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
    )
    save(LlamaForCausalLM, config, folder)


def depth(folder: Path) -> None:
    """Depth estimation, which answers with an image."""
    from transformers import GLPNConfig, GLPNForDepthEstimation, GLPNImageProcessor

    config = GLPNConfig(
        num_encoder_blocks=4,
        depths=[1, 1, 1, 1],
        hidden_sizes=[8, 8, 8, 8],
        num_attention_heads=[1, 1, 1, 1],
        decoder_hidden_size=8,
    )
    save(GLPNForDepthEstimation, config, folder)
    GLPNImageProcessor().save_pretrained(folder)


def llava(folder: Path) -> None:
    """A language model that sees, with a chat template."""
    import transformers

    tokenizer = tiny_tokenizer("distilbert")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    text: Any = transformers.LlamaConfig(
        **_SHAPE, vocab_size=len(tokenizer), max_position_embeddings=128, pad_token_id=0
    )
    vision = transformers.CLIPVisionConfig(**_SHAPE, image_size=32, patch_size=8)
    config = transformers.LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )
    save(transformers.LlavaForConditionalGeneration, config, folder)
    crop = {"height": 32, "width": 32}
    processor = transformers.LlavaProcessor(
        transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=crop),
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template="{% for m in messages %}{{ m['role'] }} : {% for c in m['content'] %}"
        "{% if c['type'] == 'image' %}<image>{% else %}{{ c['text'] }}{% endif %}{% endfor %} . "
        "{% endfor %}",
    )
    processor.save_pretrained(folder)


_SQUARE = {"height": 32, "width": 32}


def owlvit(folder: Path) -> None:
    from transformers import OwlViTConfig, OwlViTForObjectDetection, OwlViTImageProcessor

    tokenizer = tiny_tokenizer("distilbert")
    text = {**_SHAPE, "vocab_size": len(tokenizer), "max_position_embeddings": 16}
    vision = {**_SHAPE, "image_size": 32, "patch_size": 8}
    config = OwlViTConfig(text_config=text, vision_config=vision, projection_dim=32)
    save(OwlViTForObjectDetection, config, folder)
    tokenizer.save_pretrained(folder)
    OwlViTImageProcessor(size=_SQUARE, crop_size=_SQUARE).save_pretrained(folder)


def layoutlm(folder: Path) -> None:
    from transformers import LayoutLMConfig, LayoutLMForQuestionAnswering

    tokenizer = tiny_tokenizer("bert")
    tokenizer.save_pretrained(folder)
    config = LayoutLMConfig(**_SHAPE, vocab_size=len(tokenizer), max_position_embeddings=512)
    save(LayoutLMForQuestionAnswering, config, folder)


def bert_tagger(folder: Path) -> None:
    names = {"id2label": {0: "O", 1: "B-PER", 2: "I-PER"}}
    tiny_encoder("bert", "AutoModelForTokenClassification", folder, **names)


MAKERS: dict[str, Callable[[Path], None]] = {
    "image-classification": vit,
    "zero-shot-image-classification": clip,
    "automatic-speech-recognition": wav2vec2_ctc,
    "audio-classification": wav2vec2_classifier,
    "text-classification": bert_classifier,
    "zero-shot-classification": bert_nli,
    "feature-extraction": bert_hidden,
    "fill-mask": bert_mask,
    "text-generation": llama,
    "depth-estimation": depth,
    "image-text-to-text": llava,
    "zero-shot-object-detection": owlvit,
    "document-question-answering": layoutlm,
    "token-classification": bert_tagger,
    "image-feature-extraction": vit,
}


def _wav2vec2_config(**changes: Any) -> Any:
    from transformers import Wav2Vec2Config

    return Wav2Vec2Config(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        conv_dim=(8, 8, 8),
        conv_kernel=(10, 3, 3),
        conv_stride=(5, 2, 2),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        **changes,
    )


def _save_feature_extractor(folder: Path) -> None:
    from transformers import Wav2Vec2FeatureExtractor

    Wav2Vec2FeatureExtractor(sampling_rate=SAMPLING_RATE).save_pretrained(folder)


def save(model_class: Any, config: Any, folder: Path) -> None:
    """Weights large enough that answers differ from input to input."""
    torch.manual_seed(7)
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.2)
    model.save_pretrained(folder)
