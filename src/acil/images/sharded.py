"""Learning image files by several processes, as `torchrun` starts them.

Each process reads its share of the images, the sums travel, and rank 0 alone reads and writes the model
file.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from acil.classifier import ACILClassifier
from acil.distributed import Group, partial_fit, scattered, share
from acil.errors import InputError
from acil.images.classifier import ImageClassifier
from acil.images.network import network_of, require_identity
from acil.images.results import Report, Samples, name_of
from acil.modelfile import locked, pack, unpack
from acil.vision.embedder import Embedder, ImageProgress, embed_readable, require_readable
from acil.vision.networks import open_network

#: Bytes of the hash of an image.
_DIGEST_BYTES = 32


@dataclass(frozen=True)
class Share(Samples):
    """One process's samples of a phase that several learn together.

    Digests, names and messages are those of all processes.
    """

    placed: tuple[str, ...]  # class of each of the digests
    own: tuple[int, ...]  # which of the digests are those of the rows of ``features``
    group: Group

    @property
    def counts(self) -> dict[str, int]:
        """Number of images of each class on all processes, by name."""
        return dict(sorted(Counter(self.placed).items()))

    @property
    def names(self) -> list[str]:
        """Class of each of the digests, which are those of all processes."""
        return list(self.placed)

    def without(self, places: Sequence[int]) -> Share:
        """Return the other samples."""
        left_out = set(places)
        kept = [i for i in range(len(self.digests)) if i not in left_out]
        number = {place: i for i, place in enumerate(kept)}
        rows = [row for row, place in enumerate(self.own) if place in number]
        return replace(
            self,
            features=self.features[rows],
            labels=self.labels[rows],
            digests=tuple(self.digests[i] for i in kept),
            images=tuple(self.images[i] for i in kept),
            placed=tuple(self.placed[i] for i in kept),
            own=tuple(number[self.own[row]] for row in rows),
        )

    def teach(self, head: ACILClassifier) -> None:
        """Let a head learn the samples of all processes."""
        mine = (self.features, self.labels) if len(self.labels) else (None, None)
        partial_fit(head, *mine, group=self.group)


def prepare_share(
    embedder: Embedder,
    sources: Sequence[Path],
    labels: Sequence[str],
    group: Group,
    skip_bad: bool = False,
    progress: ImageProgress | None = None,
    source: str | None = None,
) -> Share:
    """Turn this process's share of some images into samples: number i belongs to rank i modulo the size.

    All processes have the same network, opened by the name ``source``, and list all images, with the
    class of each, in the same order. Of progress, this process's images are told.
    """
    start = time.perf_counter()
    places = range(group.rank, len(sources), group.size)
    found = embed_readable([sources[i] for i in places], embedder, progress)
    own_bad = [[places[i], text] for i, text in found.bad.items()]
    bad = {place: text for part in group.exchange(own_bad) for place, text in part}
    require_readable([bad[place] for place in sorted(bad)], len(sources), skip_bad)
    kept = [i for i in range(len(sources)) if i not in bad]
    number = {place: i for i, place in enumerate(kept)}
    own = [places[i] for i in found.kept]
    positions = [number[place] for place in own]
    digests = torch.tensor([[*bytes.fromhex(digest)] for digest in found.digests], dtype=torch.uint8)
    everyones = scattered(
        digests.reshape(len(own), _DIGEST_BYTES),
        torch.tensor(positions, dtype=torch.int64),
        len(kept),
        group,
    )
    return Share(
        found.features.numpy(),
        np.array([labels[i] for i in own], dtype=np.str_),
        tuple(bytes(row).hex() for row in everyones.tolist()),
        tuple(name_of(sources[i], i) for i in kept),
        tuple(bad[place] for place in sorted(bad)),
        embedder.identity,
        source,
        time.perf_counter() - start,
        tuple(labels[i] for i in kept),
        tuple(positions),
        group,
    )


def learn_together(
    model: Path,
    sources: Sequence[Path],
    labels: Sequence[str],
    group: Group,
    *,
    new: Callable[[Embedder | None], ImageClassifier],
    load: Callable[[Embedder], ImageClassifier],
    backbone: str | None = None,
    track: bool | None = None,
    undo: bool = False,
    skip_bad: bool = False,
    progress: ImageProgress | None = None,
) -> tuple[Report, Share]:
    """Learn images into a model file, each process its share; the file changes on success only.

    Rank 0 alone reads it, by ``load``, and writes it. ``new`` makes an empty model, with a network or
    the one it names itself. ``backbone`` is the network as the user names it, by default that of the
    model of rank 0; ``track`` is as ``load`` has it. For the others see `prepare_share`.

    Raises an InputError on all processes, with the rank that has found it, or a ProcessLostError if
    another process is gone.
    """
    with group.together():
        _require_same(sources, labels, group)
        embedder, source = _same_network(model, new, backbone, group)
        # Before the lock: features take longest, and others may learn into the same model meanwhile.
        samples = prepare_share(embedder, sources, labels, group, skip_bad, progress, source)
        with locked(model) if group.leads else nullcontext():
            # The file as it is now; another process may have made it or added to it.
            if group.leads and model.exists():
                classifier = load(embedder)
                share(pack(classifier.snapshot.head), group)
            elif (content := share(None, group)) is not None:
                classifier = ImageClassifier.from_head(unpack(content), embedder, track, "the model")
            else:
                classifier = new(None if group.leads else embedder)
            report = classifier.learn(samples)
            # A rank that has failed says so here: then the file is not written.
            group.exchange()
            if group.leads and report.counts:
                classifier.save(model, undo=undo)
    return report, samples


def _require_same(sources: Sequence[Path], labels: Sequence[str], group: Group) -> None:
    """Raise unless all processes list the same images; their folders may differ."""
    digest = hashlib.sha256()
    for source, label in zip(sources, labels, strict=True):
        name = os.fsencode(Path(source).name)
        digest.update(hashlib.sha256(name).digest() + hashlib.sha256(label.encode()).digest())
    found = group.exchange([digest.hexdigest(), len(sources)])
    for rank, other in enumerate(found):
        if other != found[0]:
            raise InputError(
                f"Ranks 0 and {rank} list different images ({found[0][1]} and {other[1]}). Give all "
                "processes the same files under the same names."
            )


def _same_network(
    model: Path,
    new: Callable[[Embedder | None], ImageClassifier],
    backbone: str | None,
    group: Group,
) -> tuple[Embedder, str | None]:
    """Open the network on every process, and compare it with that of rank 0, which has a model."""
    embedder = source = None
    if group.leads and model.exists():
        embedder, source = network_of(model, backbone)
    elif group.leads:
        first = new(None)
        embedder, source = first.embedder, first.source
    known = None if embedder is None else [source, embedder.identity]
    source, identity = group.exchange(known)[0]
    if embedder is None:
        embedder = open_network(backbone or source or identity["name"])
    # The identity of rank 0 came as JSON.
    require_identity(json.loads(json.dumps(embedder.identity)), identity)
    return embedder, source
