"""A small network for texts: a BERT of random weights, with a tokenizer that knows some words."""

import json
import re
from collections.abc import Iterable
from functools import cache

import torch
from safetensors.torch import save
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from acil.encoders.text import networks
from acil.encoders.text.bert import BertEncoder

HEADS, LENGTH = 2, 12
_WIDTH, _INNER, _LAYERS = 16, 32, 2
#: Words of three topics, and some of all.
TOPICS = {
    "card": "card cash machine pin blocked swallowed limit payment",
    "travel": "flight train hotel booked luggage ticket delayed airport",
    "weather": "rain sun snow wind cloudy storm forecast cold",
}
_COMMON = "the a my is was in on of to for and what when please help with today tomorrow not it"


def tokenizer_file(words: Iterable[str]) -> bytes:
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *sorted({*words})]
    tokenizer = Tokenizer(models.WordLevel({name: n for n, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    return tokenizer.to_str().encode()


def weights_file(n_words: int, seed: int = 0) -> bytes:
    return save(_weights(n_words, seed))


def _weights(n_words: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) / shape[-1] ** 0.5

    found = {
        "embeddings.word_embeddings.weight": 4 * drawn(n_words, _WIDTH),
        "embeddings.position_embeddings.weight": 0.1 * drawn(LENGTH, _WIDTH),
        "embeddings.token_type_embeddings.weight": 0.1 * drawn(2, _WIDTH),
    }
    norms = ["embeddings.LayerNorm"]
    for number in range(_LAYERS):
        here = f"encoder.layer.{number}."
        parts = [f"attention.self.{part}" for part in ("query", "key", "value")]
        sizes = {f"{here}{part}": (_WIDTH, _WIDTH) for part in (*parts, "attention.output.dense")}
        sizes |= {f"{here}intermediate.dense": (_INNER, _WIDTH), f"{here}output.dense": (_WIDTH, _INNER)}
        for name, shape in sizes.items():
            found |= {f"{name}.weight": drawn(*shape), f"{name}.bias": 0.1 * drawn(shape[0])}
        norms += [f"{here}attention.output.LayerNorm", f"{here}output.LayerNorm"]
    for name in norms:
        found |= {f"{name}.weight": 1 + 0.1 * drawn(_WIDTH), f"{name}.bias": 0.1 * drawn(_WIDTH)}
    return found


@cache
def tiny_encoder(seed: int = 0, name: str = "tiny") -> BertEncoder:
    """Return a network that knows the words of `TOPICS`, and takes twelve tokens."""
    words = re.findall(r"\w+", " ".join([*TOPICS.values(), _COMMON]))
    tokenizer = tokenizer_file(words)
    size = len(json.loads(tokenizer)["model"]["vocab"])
    return BertEncoder(weights_file(size, seed), tokenizer, name, HEADS, LENGTH)


def sentences(topic: str, n: int, seed: int = 0) -> list[str]:
    """Return sentences of a topic, all different; without one, of words that all topics have."""
    generator = torch.Generator().manual_seed(seed)
    words, common = (TOPICS[topic] if topic else _COMMON).split(), _COMMON.split()
    found: dict[str, None] = {}
    while len(found) < n:
        own = torch.randperm(len(words), generator=generator)[:3].tolist()
        others = torch.randperm(len(common), generator=generator)[:4].tolist()
        found[" ".join([common[i] for i in others[:2]] + [words[i] for i in own])] = None
    return list(found)


def stand_in_for_minilm(monkeypatch) -> None:
    """Have the small network opened wherever the default one is named, until the test ends."""
    monkeypatch.setattr(networks, "open_minilm", lambda: tiny_encoder(name=networks.DEFAULT))
