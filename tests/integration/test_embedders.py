"""Embedders from sentence-transformers models, against sentence-transformers itself."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder as TheirCrossEncoder
from sentence_transformers import SentenceTransformer

from services.retrieval.embedder import EmbedderSettings
from services.retrieval.embedder_files import EmbedderFiles
from services.retrieval.reranker import CrossEncoder
from services.retrieval.transformer_embedder import TransformerEmbedder, load_embedder
from shared.errors import ConfigError
from tests.tiny_embedders import write_cross_encoder, write_embedder

TEXTS = ["the river is wide", "who built the bridge", "orla and tam"]
E5 = {"query": "query: ", "passage": "passage: "}


@pytest.mark.parametrize("roberta", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("prompts", [None, E5, {"query": "query: ", "document": ""}])
def test_vectors_are_those_of_sentence_transformers(
    tmp_path: Path, pooling: str, prompts: dict[str, str] | None, roberta: bool
) -> None:
    write_embedder(tmp_path, pooling, prompts, roberta)
    ours, theirs = TransformerEmbedder(tmp_path, 1), SentenceTransformer(str(tmp_path), device="cpu")
    prompts = prompts or {}
    document = prompts.get("document", prompts.get("passage", ""))
    for vectors, prompt in (
        (ours.embed_queries(TEXTS), prompts.get("query", "")),
        (ours.embed_documents(TEXTS), document),
    ):
        expected = theirs.encode(TEXTS, prompt=prompt, normalize_embeddings=True)
        assert (vectors * expected).sum(1) == pytest.approx(1.0, abs=1e-3)  # bfloat16 where it is fast


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_text_that_is_given_several_times_is_embedded_once(tmp_path: Path, pooling: str) -> None:
    long = "the river is wide and slow " * 40  # several windows
    texts = [TEXTS[0], long, TEXTS[1], TEXTS[0], long, TEXTS[0]]
    embedder = TransformerEmbedder(write_embedder(tmp_path, pooling), 1)
    windows: list[int] = []

    def note(module: object, args: object, kwargs: dict[str, torch.Tensor]) -> None:
        windows.append(len(kwargs["input_ids"]))

    with embedder._model.register_forward_pre_hook(note, with_kwargs=True):
        vectors = embedder.embed_documents(texts)
        of_all = sum(windows)
        distinct = embedder.embed_documents([TEXTS[0], long, TEXTS[1]])
    assert sum(windows) == 2 * of_all
    assert of_all > 3
    assert np.array_equal(vectors, distinct[[0, 1, 2, 0, 1, 0]])


def test_settings_of_prefixes_stand_for_prompts_that_the_files_lack(tmp_path: Path) -> None:
    bare = write_embedder(tmp_path / "bare")
    named = write_embedder(tmp_path / "named", prompts=E5)
    by_setting = load_embedder(EmbedderSettings(str(bare), "query: ", "passage: "), 1)
    by_file = load_embedder(EmbedderSettings(str(named)), 1)
    assert (by_file.query_prefix, by_file.document_prefix) == ("query: ", "passage: ")
    assert np.array_equal(by_setting.embed_queries(TEXTS), by_file.embed_queries(TEXTS))
    assert np.array_equal(by_setting.embed_documents(TEXTS), by_file.embed_documents(TEXTS))
    assert not np.allclose(by_file.embed_queries(TEXTS), by_file.embed_documents(TEXTS))
    without = load_embedder(EmbedderSettings(str(named), "", ""), 1)
    assert np.array_equal(without.embed_queries(TEXTS), without.embed_documents(TEXTS))


def test_the_identity_is_that_of_the_vectors(tmp_path: Path) -> None:
    model = write_embedder(tmp_path / "m")
    mean = load_embedder(EmbedderSettings(str(model)), 1).identity
    assert load_embedder(EmbedderSettings(str(model), "", ""), 1).identity == mean
    others = [
        load_embedder(EmbedderSettings(str(model), "query: "), 1),
        load_embedder(EmbedderSettings(str(model), "query: ", "passage: "), 1),
        load_embedder(EmbedderSettings(str(write_embedder(tmp_path / "cls" / "m", "cls"))), 1),
        load_embedder(EmbedderSettings(str(write_embedder(tmp_path / "other" / "m", seed=1))), 1),
    ]
    assert len({mean, *(other.identity for other in others)}) == 5


@pytest.mark.parametrize("roberta", [False, True])
def test_where_no_file_says_how_long_a_text_may_be_it_is_the_encoders_length(
    tmp_path: Path, roberta: bool
) -> None:
    embedder = TransformerEmbedder(write_embedder(tmp_path, roberta=roberta, window_len=None), 1)
    long = "the river is wide and slow " * 9
    (vector, other) = embedder.embed_documents([long, long + "tam built the bridge"])
    assert np.isfinite(vector).all()
    assert not np.allclose(vector, other)


def test_the_form_of_newer_files_is_read(tmp_path: Path) -> None:
    root = write_embedder(tmp_path, "cls")
    pooling = root / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps({"embedding_dimension": 16, "pooling_mode": "cls", "include_prompt": True}))
    assert EmbedderFiles.read(root).pooling == "cls"
    pooling.write_text(json.dumps({"embedding_dimension": 16, "pooling_mode": "lasttoken"}))
    with pytest.raises(ConfigError, match=r"pooling lasttoken of .* is not supported"):
        EmbedderFiles.read(root)
    pooling.write_text(json.dumps({"pooling_mode": "mean", "include_prompt": False}))
    with pytest.raises(ConfigError, match="include_prompt"):
        EmbedderFiles.read(root)


@pytest.mark.parametrize(
    ("card", "languages"),
    [
        ("---\nlanguage: en\nlicense: mit\n---\n# Model", ("en",)),
        ("---\nlanguage:\n- en\n- de\n---\n", ("en", "de")),
        ("---\nlicense: mit\n---\n", ()),
        ("# No front matter", ()),
        ("---\n: [broken\n---\n", ()),
    ],
)
def test_languages_are_those_of_the_models_card(
    tmp_path: Path, card: str, languages: tuple[str, ...]
) -> None:
    root = write_embedder(tmp_path)
    (root / "README.md").write_text(card)
    assert EmbedderFiles.read(root).languages == languages


def test_the_embedder_in_the_box_is_english_without_prefixes() -> None:
    embedder = load_embedder(EmbedderSettings("minilm"), 1)
    assert embedder.languages == ("en",)
    assert (embedder.query_prefix, embedder.document_prefix) == ("", "")


def test_a_cross_encoder_scores_as_that_of_sentence_transformers_in_any_order(tmp_path: Path) -> None:
    root = write_cross_encoder(tmp_path)
    texts = [*TEXTS, "tam", "slow"] * 7
    ours = CrossEncoder(root, 1).scores("who built the bridge", texts)
    theirs = TheirCrossEncoder(str(root), device="cpu", activation_fn=torch.nn.Identity())
    expected = theirs.predict([("who built the bridge", text) for text in texts])
    assert ours == pytest.approx(expected.tolist(), abs=1e-4)
    distinct = sorted(ours[:5])
    assert ours == pytest.approx(ours[:5] * 7, abs=1e-4)
    assert all(second - first > 1e-2 for first, second in itertools.pairwise(distinct))
    assert CrossEncoder(root, 1).scores("who", []) == []


def test_of_a_text_that_is_too_long_for_the_cross_encoder_the_beginning_is_read(tmp_path: Path) -> None:
    reranker = CrossEncoder(write_cross_encoder(tmp_path), 1)
    (one, other) = reranker.scores("who", ["the river is wide " * 9, "the river is wide " * 9 + "tam"])
    assert one == pytest.approx(other)


def test_what_is_no_cross_encoder_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="reranker: 'nothing' is not a sequence classification model"):
        CrossEncoder(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="has 3 labels"):
        CrossEncoder(write_cross_encoder(tmp_path, num_labels=3))
