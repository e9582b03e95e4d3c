"""Batches with texts and tokens: labels are optional, errors name the sample, tokens have one length."""

from __future__ import annotations

import functools
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from photo_folder import photo
from tokenizers_of_users import LENGTH, CountLetters, Padding, count_letters

from penstock.loaders import LoaderError, create_loader, open_source, with_fields
from penstock.loaders.front.loader import Loader
from penstock.loaders.make.own_tokenizer import OwnTokenizer
from penstock.pipelines import ImagePipeline, imagenet_eval, imagenet_train

COUNT = 20


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder without classes; each photo has a text and captions beside it."""
    folder = tmp_path_factory.mktemp("flat")
    for number in range(COUNT):
        (folder / f"{number:02}.jpg").write_bytes(photo(number))
        (folder / f"{number:02}.txt").write_text(f"text number {number}\n")
        captions = [f"caption {letter} of {number}" for letter in "abc"[: 2 + number % 2]]
        (folder / f"{number:02}.json").write_text(json.dumps({"captions": captions}))
    return folder


def open_loader(source: Any, **settings: Any) -> Loader:
    usual: dict[str, Any] = {"pipeline": imagenet_train(16), "batch_size": 4, "workers": 0, "text": "txt"}
    return create_loader(source, **{**usual, **settings})


def refused(source: Any, **settings: Any) -> str:
    with pytest.raises(ValueError) as caught:
        open_loader(source, **settings)
    return str(caught.value)


# ---- without labels ----


@pytest.mark.parametrize("tokenize", [None, count_letters])
def test_batches_without_labels_unpack_as_images_and_texts(flat: Path, tokenize: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = open_loader(flat, tokenize=tokenize, with_index=True)
    batch = next(iter(loader))
    images, texts, index = batch
    assert batch.labels is None
    assert list(batch) == list(batch.keys()) == ["images", "text", "index"]
    assert (batch[0] is images, batch[1] is batch["text"] is texts, batch[2] is index) == (True, True, True)
    wanted = [f"text number {number}" for number in index.tolist()]
    assert texts == wanted if tokenize is None else texts.tolist() == list(map(count_letters, wanted))
    with pytest.raises(KeyError, match="images, text, index"):
        batch["labels"]


def test_labels_stay_where_there_are_some(photos: Path, flat: Path) -> None:
    captions = [f"caption {number}" for number in range(len(list(photos.rglob("*.jpg"))))]
    with create_loader(with_fields(photos, text=captions), batch_size=4, workers=0) as loader:
        _, labels = batch = next(iter(loader))
        assert labels is batch["labels"]
        assert labels.dtype == torch.int64
    listed = [(str(path), 0.5) for path in sorted(flat.glob("*.jpg"))]
    batch = next(iter(open_loader(listed)))
    assert batch[1].tolist() == [0.5] * 4
    assert len(batch["text"]) == 4


def test_padding_has_empty_texts_and_zeros(flat: Path) -> None:
    def last(**settings: Any) -> Any:
        with open_loader(flat, pipeline=imagenet_eval(16), batch_size=8, pad=True, **settings) as loader:
            return list(loader)[-1]

    assert last().index.tolist()[4:] == [-1] * 4
    assert last()["text"][4:] == [""] * 4
    tokens = last(tokenize=count_letters)["text"]
    assert tokens.dtype == torch.int64
    assert tokens[:4].ne(0).any(1).all()
    assert tokens[4:].tolist() == [[0] * LENGTH] * 4


@pytest.mark.parametrize("num_views", [1, 2])
def test_whole_images_have_tokens(flat: Path, num_views: int) -> None:
    def corner(image: Any) -> Any:
        return image[:16, :16].copy()

    whole = [ImagePipeline(size=(16, 16), crop="none", flip=0.0)] * num_views
    for workers in (0, 2):
        settings = {"pipeline": whole, "transform": corner, "shuffle": False, "workers": workers}
        with open_loader(flat, tokenize=count_letters, **settings) as loader:
            tokens = torch.cat([batch["text"] for batch in loader]).tolist()
        assert tokens == [count_letters(f"text number {number}\n") for number in range(COUNT)]


# ---- captions ----


def test_a_caption_is_drawn_anew_in_each_epoch_and_depends_on_the_seed(flat: Path) -> None:
    def run(**settings: Any) -> list[dict[int, str]]:
        with open_loader(flat, text="json:captions", captions="draw", with_index=True, **settings) as loader:
            epochs = ([(batch["index"], batch["text"]) for batch in loader] for _ in range(3))
            return [
                {n: text for index, texts in of for n, text in zip(index.tolist(), texts, strict=True)} for of in epochs
            ]

    drawn = run(seed=1)
    assert drawn == run(seed=1, batch_size=2)  # the draw belongs to the sample
    others = [*drawn[1:], *run(seed=2)[:1]]
    for other in others:
        assert 0 < sum(drawn[0][number] != other[number] for number in drawn[0]) < COUNT
    letters = [text[8] for epoch in drawn for number, text in epoch.items() if number % 2]
    assert set(letters) == set("abc")
    assert max(map(letters.count, "abc")) < 20  # of 30


def test_captions_are_served_as_asked(flat: Path) -> None:
    def texts(captions: Any, **settings: Any) -> Any:
        with open_loader(flat, text="json:captions", captions=captions, shuffle=False, **settings) as loader:
            return next(iter(loader))["text"]

    assert texts(None) == texts("all")
    assert texts("all")[:2] == [["caption a of 0", "caption b of 0"], [f"caption {x} of 1" for x in "abc"]]
    assert texts("first")[1] == "caption a of 1"
    assert texts(2)[1] == ["caption a of 1", "caption b of 1"]
    tokens = texts(2, tokenize=CountLetters())
    assert tokens.shape == (4, 2, LENGTH)
    assert tokens[1, 1].tolist() == count_letters("caption b of 1")
    with pytest.raises(LoaderError, match="captions=3, but the sample has 2") as caught:
        texts(3)
    assert caught.value.sample == 0
    with pytest.raises(LoaderError, match="captions=3, but the sample has 2"):
        texts(3, tokenize=count_letters, workers=2)


def test_texts_with_the_data_are_fields_of_their_own(flat: Path) -> None:
    assert with_fields(flat, text="txt", subset=":2")[1].fields == open_source(flat, text="txt")[1].fields != {}


def test_options_without_effect_are_refused(flat: Path) -> None:
    assert "captions='draw'" in refused(flat, text="json:captions", tokenize=count_letters)
    assert "each sample has one text" in refused(flat, captions="draw")
    assert "captions must be 'all'" in refused(flat, text="json:captions", captions="some")
    assert "captions must be at least 1" in refused(flat, text="json:captions", captions=0)
    with pytest.raises(ValueError, match="tokenize needs texts, but the data was opened without them: pass text="):
        create_loader(with_fields(flat, number=[1] * COUNT), tokenize=count_letters, batch_size=4, workers=0)
    named = with_fields(flat, caption=["a"] * COUNT)
    with pytest.raises(ValueError, match="name the field 'caption' 'text'"):
        create_loader(named, tokenize=count_letters, batch_size=4, workers=0)


# ---- tokenizers ----


def ragged(text: str) -> list[int]:
    return list(range(len(text)))


def too_long_for_seven(text: str) -> list[int]:
    return [1] * (LENGTH + (text == "text number 7"))


def fails_for_seven(texts: list[str]) -> list[list[int]]:
    if "text number 7" in texts:
        raise RuntimeError("no token")
    return [count_letters(text) for text in texts]


@pytest.mark.parametrize("workers_are", ["threads", "processes"])
@pytest.mark.parametrize(
    ("tokenize", "cause"),
    [(fails_for_seven, "RuntimeError: no token"), (too_long_for_seven, r"6 tokens for each text.* got 7|6, 7")],
)
def test_an_error_names_the_sample_or_replaces_it(flat: Path, tokenize: Any, cause: str, workers_are: str) -> None:
    workers = {"workers": 2, "workers_are": workers_are, "tokenize": tokenize}
    with open_loader(flat, **workers) as loader, pytest.raises(LoaderError, match=cause) as caught:
        list(loader)
    assert (caught.value.code, caught.value.sample) == ("E-DATASET", 7)
    if workers_are == "threads":
        with open_loader(flat, on_bad_sample="replace", **workers) as loader:
            batches = list(loader)
            served = [number for batch in batches for number in batch.index.tolist()]
            tokens = torch.cat([batch["text"] for batch in batches])
        assert 7 not in served
        assert [bad["sample"] for bad in loader.ledger(0).as_dict()["bad"]] == [7]
        wanted = [count_letters(f"text number {n}") if tokenize is fails_for_seven else [1] * LENGTH for n in served]
        assert tokens.tolist() == wanted


def test_results_that_cannot_be_served_are_refused_with_the_cure(flat: Path) -> None:
    def refused_result(result: Any) -> str:
        return refused(flat, tokenize=lambda text: result)

    lengths = refused(flat, tokenize=ragged)
    assert "equally many tokens for all texts, got 16, 32, 49" in lengths
    assert "functools.partial(tokenizer, padding='max_length'" in lengths
    assert "integers [length] for a text, got float64 [1, 1]" in refused_result([0.5])
    assert "got None" in refused_result(None)
    assert "dict with 'input_ids', got ['ids']" in refused_result({"ids": [1]})
    assert "raised ZeroDivisionError" in refused(flat, tokenize=lambda text: 1 / 0)
    assert "must be a function of a text, or a tokenizer, got 'gpt2'" in refused(flat, tokenize="gpt2")
    assert "the tokenizer cannot be sent to worker processes" in refused(
        flat, tokenize=lambda text: [1], workers=1, workers_are="processes"
    )


def test_a_tokenizer_is_called_with_lists_if_it_takes_them(flat: Path) -> None:
    calls: list[Any] = []

    def spy(texts: Any, inner: Any) -> Any:
        calls.append(texts)
        return inner(texts)

    for inner, kind in ((CountLetters(), list), (count_letters, str)):
        loader = open_loader(flat, tokenize=functools.partial(spy, inner=inner))
        calls.clear()
        batch = next(iter(loader))
        assert set(map(type, calls)) == {kind}
        assert len(calls) == (1 if kind is list else 4)
        assert batch["text"].shape == (4, LENGTH)


def test_tokenizers_of_hugging_face_are_padded_and_copied(flat: Path) -> None:
    shared = Padding()
    with open_loader(flat, tokenize=shared, shuffle=False) as loader:
        shared.settings.update(padding="max_length", max_length=3, truncation=True)  # by other code
        batch = next(iter(loader))
    assert shared.settings["max_length"] == 3
    assert batch["text"].tolist() == [[5, 7, 2, 0, 0, 0, 0, 0]] * 4
    assert batch["text_mask"].tolist() == [[1, 1, 1, 0, 0, 0, 0, 0]] * 4
    assert list(batch.keys()) == ["images", "text", "text_mask"]
    shared.model_max_length = 10**30
    assert "model_max_length" in refused(flat, tokenize=shared)
    limited = functools.partial(shared, padding="max_length", truncation=True, max_length=2)
    assert next(iter(open_loader(flat, tokenize=limited, shuffle=False)))["text"].tolist() == [[5, 7]] * 4


def test_the_name_of_a_tokenizer_is_part_of_a_state(flat: Path) -> None:
    def state(**settings: Any) -> dict[str, Any]:
        with open_loader(flat, **settings) as loader:
            return loader.state_dict()

    assert not {"tokenize", "captions"} & state()["pipeline"].keys()
    plain = state(tokenize=count_letters)
    assert plain["pipeline"]["tokenize"] == "tokenizers_of_users.count_letters"
    with open_loader(flat, tokenize=CountLetters()) as loader, pytest.raises(LoaderError, match="tokenize"):
        loader.load_state_dict(plain)
    used = CountLetters()
    before = OwnTokenizer(used).name
    used(["other texts", "fill its cache"])
    assert OwnTokenizer(used).name == before == OwnTokenizer(CountLetters()).name
    drawn = state(text="json:captions", captions="draw")
    with (
        open_loader(flat, text="json:captions", captions="first") as loader,
        pytest.raises(LoaderError, match="captions"),
    ):
        loader.load_state_dict(drawn)


def test_a_cache_serves_the_texts_alone(flat: Path, tmp_path: Path) -> None:
    with open_loader(flat, backend="hdf5", cache=tmp_path / "c.h5", text="json:captions", captions="draw") as loader:
        wanted = next(iter(loader))["text"]
    usual = {"pipeline": imagenet_train(16), "batch_size": 4, "workers": 0}
    with create_loader(tmp_path / "c.h5", captions="draw", **usual) as loader:
        assert next(iter(loader))["text"] == wanted
    assert "a cache serves those of its data" in refused(tmp_path / "c.h5")


def test_a_mixture_and_weights_serve_each_image_with_its_text(flat: Path) -> None:
    with open_loader(flat, weights=np.arange(COUNT) + 1.0, epoch_samples=40, tokenize=count_letters) as loader:
        for batch in loader:
            wanted = [count_letters(f"text number {number}") for number in batch.index.tolist()]
            assert batch["text"].tolist() == wanted
