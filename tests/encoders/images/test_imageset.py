"""Sets of images: subsets, identity, memory maps."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acil.encoders.images import imageset
from acil.encoders.images.imageset import ImageSet, content_identity
from acil.errors import InputError


def pixels_of(n: int) -> torch.Tensor:
    return torch.arange(n * 12, dtype=torch.int64).to(torch.uint8).reshape(n, 3, 2, 2)


def images_of(n: int) -> ImageSet:
    return ImageSet(pixels_of(n), None, "identity")


class Recorder:
    """An extractor that says what it was asked for."""

    def features(self, images):
        return images.pixels().flatten(1).float()


def test_whole_set_is_the_tensor_itself():
    pixels = pixels_of(4)
    images = ImageSet(pixels, None, "identity")
    assert len(images) == 4
    assert images.shape == (3, 2, 2)
    assert images.pixels().data_ptr() == pixels.data_ptr()
    assert images.indices is None


@given(st.data())
def test_nested_subsets_compose(data):
    images, chosen = images_of(9), torch.arange(9)
    for _ in range(3):
        places = data.draw(st.lists(st.integers(0, len(chosen) - 1), min_size=1, max_size=9))
        images, chosen = images.subset(torch.tensor(places)), chosen[places]
    assert torch.equal(images.pixels(), pixels_of(9)[chosen])
    assert torch.equal(images.indices, chosen)
    assert images.identity == "identity"
    assert torch.equal(images.whole.pixels(), pixels_of(9))
    assert torch.equal(images.batch(0, 1), pixels_of(9)[chosen[:1]])


def test_subset_shares_memory_but_not_its_indices():
    images, chosen = images_of(4), torch.tensor([2, 0])
    part = images.subset(chosen)
    chosen[0] = 1
    assert part.indices.tolist() == [2, 0]
    images.pixels()[2] = 7
    assert part.pixels()[0].unique().tolist() == [7]
    part.pixels()[:] = 200
    assert not bool((images.pixels() == 200).any())


@pytest.mark.parametrize("empty", [torch.tensor([]), torch.tensor([], dtype=torch.int64), []])
def test_empty_subset(empty):
    part = images_of(3).subset(empty)
    assert len(part) == 0
    assert part.pixels().shape == (0, 3, 2, 2)


@pytest.mark.parametrize("indices", [[3], [-1], [0.0], [[0]], [True]])
def test_wrong_indices_are_refused(indices):
    with pytest.raises(InputError, match="Indices"):
        images_of(3).subset(torch.tensor(indices))


@pytest.mark.parametrize(
    ("pixels", "vectors"),
    [
        (None, None),
        (torch.zeros(2, 3, 4, 4), None),
        (torch.zeros(3, 4, 4, dtype=torch.uint8), None),
        (None, torch.zeros(2, 4, dtype=torch.float64)),
        (None, torch.zeros(4)),
        (pixels_of(2), torch.zeros(2, 4)),
    ],
)
def test_what_is_no_set_of_images_is_refused(pixels, vectors):
    with pytest.raises(InputError):
        ImageSet(pixels, vectors, "identity")


def test_vectors_are_features_as_they_are():
    vectors = torch.arange(12, dtype=torch.float32).reshape(4, 3)
    images = ImageSet(None, vectors, "identity")
    assert images.shape == (3,)
    assert not images.has_pixels
    assert images.features(None).data_ptr() == vectors.data_ptr()
    assert torch.equal(images.subset(torch.tensor([3, 1])).features(None), vectors[[3, 1]])
    with pytest.raises(InputError, match="3 features"):
        images.pixels()


def test_images_need_an_extractor():
    part = images_of(4).subset(torch.tensor([3, 1]))
    assert torch.equal(part.features(Recorder()), pixels_of(4)[[3, 1]].flatten(1).float())
    with pytest.raises(InputError, match="extractor"):
        part.features(None)


def test_identity_says_content_type_and_shape():
    content = torch.arange(24, dtype=torch.uint8)
    variants = [
        content.reshape(4, 6),
        content.reshape(6, 4),
        content.reshape(4, 6).to(torch.int8),
        content.reshape(4, 6).float(),
        content.reshape(4, 6).bfloat16(),
        content.reshape(4, 6).flip(0),
        content.reshape(4, 6)[:0],
        content.reshape(4, 6)[:, :0],
        content[0],
    ]
    assert len({content_identity(variant) for variant in variants}) == len(variants)


@pytest.mark.parametrize("chunk", [1, 5, 12, 25, 2**24])
def test_identity_does_not_depend_on_memory_layout_or_chunks(monkeypatch, chunk):
    content = pixels_of(5)
    expected = content_identity(content)
    monkeypatch.setattr(imageset, "_CHUNK_BYTES", chunk)
    assert content_identity(content) == expected
    assert content_identity(content.contiguous(memory_format=torch.channels_last)) == expected
