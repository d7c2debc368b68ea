"""Shares of a split: together they are the whole, and each process extracts only its own."""

from types import SimpleNamespace

import pytest
import torch

from acil.errors import InputError
from acil.methods.base import Phase
from acil.methods.frozen_features import own_phase, own_rows
from acil.vision.backbones import build
from acil.vision.cache import FeatureCache
from acil.vision.extract import FeatureExtractor
from acil.vision.imageset import ImageSet, content_identity


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (23, 1, 8, 8), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels, None, content_identity(pixels))


def groups(size):
    return [SimpleNamespace(rank=rank, size=size) for rank in range(size)]


@pytest.mark.parametrize("size", [1, 2, 5, 40])
def test_shares_of_a_part_are_the_whole_part(images, size):
    part = images.subset(torch.tensor([4, 20, 3, 3, 9, 15]))
    phase = Phase(1, (0, 1), part, torch.tensor([0, 1, 0, 0, 1, 1]), 2)
    shares = [own_phase(phase, group) for group in groups(size)]
    rows = torch.cat([own_rows(part, group) for group in groups(size)])
    assert rows.sort().values.tolist() == list(range(6))
    assert torch.equal(torch.cat([share.labels for share in shares]), phase.labels[rows])
    assert torch.equal(torch.cat([share.images.pixels() for share in shares]), part.pixels()[rows])


def test_a_share_is_extracted_once_and_has_the_features_of_the_whole(images):
    backbone = build("smallcnn", torch.Generator().manual_seed(0)).eval()
    whole = FeatureExtractor(backbone, cache=FeatureCache(None)).features(images)
    for group in groups(3):
        seen = []
        extractor = FeatureExtractor(
            backbone,
            cache=FeatureCache(None),
            progress=lambda done, total, seen=seen: seen.append(total),
            share=(group.rank, group.size),
        )
        for part in (images, images.subset(torch.tensor([7, 5, 0, 22, 1, 2]))):
            rows = own_rows(part, group)
            places = rows if part.indices is None else part.indices[rows]
            found = extractor.features(part.subset(rows))
            assert torch.equal(found, whole[places])
        assert seen == [len(own_rows(images, group))]


def test_images_of_another_share_are_refused(images):
    backbone = build("smallcnn", torch.Generator().manual_seed(0))
    extractor = FeatureExtractor(backbone, cache=FeatureCache(None), share=(1, 2))
    with pytest.raises(InputError, match="share 1 of 2"):
        extractor.features(images.subset(torch.tensor([1, 2])))
