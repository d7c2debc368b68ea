"""ImageNet (ILSVRC 2012) as people have it, and the two lists of a hundred of its classes.

Nothing is unpacked, copied or decoded beforehand: images stay where they are, and what is kept in memory
is their names.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
import os
import re
import shlex
import tarfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from acil.bench.datasets import ROOT_VARIABLE, Dataset, ProgressCallback
from acil.bench.orders import Subset, imagenet_classes, imagenet_subset
from acil.core.files.writing import replacing
from acil.encoders.images.embedder import decode_all
from acil.encoders.images.imagefiles import ImageFiles
from acil.encoders.images.imageset import ImageSet
from acil.encoders.images.listing import SUFFIXES, first_of
from acil.encoders.images.networks import CACHE_VARIABLE
from acil.errors import ACILError, InputError

#: Images of the whole, as published.
TRAIN_IMAGES, VAL_IMAGES = 1_281_167, 50_000
#: Bytes of the official archives.
_ARCHIVES = 147_897_477_120 + 6_744_924_160
#: Names of the official files.
TRAIN_TAR, VAL_TAR = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
DEVKIT, DEVKIT_TAR = "ILSVRC2012_devkit_t12", "ILSVRC2012_devkit_t12.tar.gz"
_TRUTH, _SYNSETS = "ILSVRC2012_validation_ground_truth.txt", "meta.mat"
#: Kaggle's file of the same truth, and where its archive has the images.
SOLUTION, KAGGLE = "LOC_val_solution.csv", Path("ILSVRC/Data/CLS-LOC")
#: Images of a class in the official splits: others are odd.
_PER_CLASS = {"train": range(732, 1301), "val": range(50, 51)}
#: Seconds for counting images without listing them; the official numbers stand for the rest.
_COUNTING = 0.6
#: Images that are checked together, at most this much work is lost.
_CHECKED = 1000
#: Reasons that a message lists.
_SHOWN = 5
_WNID = re.compile(r"n\d{8}")

logger = logging.getLogger(__name__)


@dataclass
class _Split:
    """Images of one split, class by class."""

    folders: list[str] = field(default_factory=list)
    folder_of: list[npt.NDArray[np.int32]] = field(default_factory=list)
    names: list[npt.NDArray[np.bytes_]] = field(default_factory=list)
    labels: list[npt.NDArray[np.int64]] = field(default_factory=list)
    places: list[npt.NDArray[np.int64]] = field(default_factory=list)

    def add(
        self,
        label: int,
        folder: str,
        names: Sequence[str],
        places: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Add the images of one class, in the order of their names."""
        if not self.folders or self.folders[-1] != folder:
            self.folders.append(folder)
        encoded = np.array([os.fsencode(name) for name in names], dtype=np.bytes_)
        order = np.argsort(encoded, kind="stable")
        self.names.append(encoded[order])
        self.folder_of.append(np.full(len(names), len(self.folders) - 1, dtype=np.int32))
        self.labels.append(np.full(len(names), label, dtype=np.int64))
        if places is not None:
            self.places.append(places[order])

    def made(self, wnids: Sequence[str], **options: Any) -> tuple[ImageSet, Tensor]:
        """Return images and labels."""
        digest = hashlib.sha256(b"imagenet")
        for label, names in zip(self.labels, self.names, strict=True):
            # Names are the same wherever the images lie.
            digest.update(wnids[int(label[0])].encode() + b" ".join(names.tolist()))
        names = np.concatenate(self.names)
        places = np.concatenate(self.places) if self.places else None
        files = ImageFiles(
            self.folders,
            np.concatenate(self.folder_of),
            names,
            digest.hexdigest(),
            places=None if places is None else (places[:, 0].copy(), places[:, 1].copy()),
            **options,
        )
        return ImageSet(files), torch.from_numpy(np.concatenate(self.labels))


def load(
    root: Path | None,
    *,
    n_classes: int = 1000,
    subset: Subset = "podnet",
    size: int = 224,
    resize: int | None = None,
    workers: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    skip_bad: bool = False,
    check: bool = False,
    outline: bool = False,
    progress: ProgressCallback | None = None,
) -> Dataset:
    """Return ImageNet, or a hundred classes of it, from a folder as people have it.

    Training images are in ``train/WNID/``, or in the official ``ILSVRC2012_img_train.tar``; test images
    in ``val/WNID/``, in ``val/`` without folders, or in ``ILSVRC2012_img_val.tar``. In the last two
    cases the classes come from ``LOC_val_solution.csv`` or from the development kit
    (``ILSVRC2012_devkit_t12``, or its ``.tar.gz``). Folders may be Kaggle's. Archives are read as they
    are; what stands where in them is kept in the folder ``cache``, by default the one that the
    environment variable ACIL_CACHE names, or ``.acil-cache`` in ``root``.

    The network sees squares of ``size`` pixels: for features the shorter side is scaled to ``resize``
    (by default 256 / 224 of it), and the middle is cut out. ``subset`` says which hundred classes:
    ``"podnet"``, the first by name, or ``"lucir"``. ``workers`` processes decode, by default one a core.

    With ``check`` every image is decoded once; where it stands is kept in ``cache``, so that it goes on
    after an interruption. Those that cannot be read are then an error, or with ``skip_bad`` left out.
    With ``outline`` nothing is listed: images are counted, for a plan. Then the folder may be empty.
    """
    folder = _existing(root, outline)
    if type(size) is not int or not 1 <= size <= 4096:
        raise InputError(f"size must be a whole number of pixels from 1 to 4096, got {size!r}.")
    scaled = round(size * 256 / 224) if resize is None else resize
    if type(scaled) is not int or scaled < size:
        raise InputError(f"resize must be a whole number of at least size = {size}, got {resize!r}.")
    everything = imagenet_classes()
    wnids = everything if n_classes == 1000 else tuple(everything[i] for i in imagenet_subset(subset))
    cache_folder = Path(cache or os.environ.get(CACHE_VARIABLE) or folder / ".acil-cache")
    source = _Source(folder, wnids, cache_folder, progress)
    if not (outline and source.empty):
        source.check()
    advice = f"acil data prepare {'imagenet' if n_classes == 1000 else 'imagenet100'}:{folder}"
    options = {"size": size, "crop": size / scaled, "workers": workers, "advice": advice}
    notes: tuple[str, ...] = ()
    if outline:
        train, test, notes = source.outlined(options)
    else:
        train, test = source.train().made(wnids, **options), source.test().made(wnids, **options)
        for what, (_, labels) in (("train", train), ("val", test)):
            for note in _odd(what, wnids, torch.bincount(labels).tolist()):
                logger.warning("%s.", note)
    skipped: list[str] = []
    if not outline:
        parts = []
        for what, (images, labels) in (("train", train), ("val", test)):
            bad = _Checked(images, what, cache_folder).bad(check, progress)
            if bad and not skip_bad:
                raise InputError(
                    f"{len(bad)} of {len(images)} images in {what} cannot be read: "
                    f"{' '.join(list(bad.values())[:_SHOWN])} Leave them out with --skip-bad."
                )
            good = torch.ones(len(images), dtype=torch.bool)
            good[list(bad)] = False
            rows = torch.nonzero(good).flatten()
            parts.append((images.subset(rows).alone(), labels[rows]) if bad else (images, labels))
            skipped += [images.files.name(place) for place in bad] if images.files else []
        train, test = parts
    return Dataset(
        name="imagenet" if n_classes == 1000 else f"imagenet100-{subset}",
        train=train[0],
        train_labels=train[1],
        test=test[0],
        test_labels=test[1],
        class_names=wnids,
        default_recipe="imagenet",
        default_base=n_classes // 2,
        skipped=tuple(skipped),
        notes=notes,
    )


class _Checked:
    """What is known of images that cannot be read: a line of JSON for each block that was decoded."""

    def __init__(self, images: ImageSet, what: str, cache: Path) -> None:
        self.images, self.what = images, what
        self.path = cache / f"checked-{what}-{images.identity.partition(':')[0][:24]}.jsonl"

    def bad(self, check: bool, progress: ProgressCallback | None) -> dict[int, str]:
        """Return the positions of images that cannot be read, and why; look now if asked to."""
        reasons: dict[int, str] = {}
        done = 0
        with suppress(OSError):
            for line in self.path.read_bytes().splitlines(keepends=True):
                # The last line may be half of one.
                with suppress(ValueError, KeyError):
                    block = json.loads(line)
                    if line.endswith(b"\n") and block["from"] == done:
                        done = block["to"]
                        reasons |= {int(place): why for place, why in block["bad"].items()}
        n, files = len(self.images), self.images.files
        if not check or files is None or done >= n:
            return reasons
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as log:
                log.write(b"\n")  # after half a line
                for start in range(done, n, _CHECKED):
                    places = range(start, min(start + _CHECKED, n))
                    read = decode_all(map(files.task, places), files.readable)
                    bad = {k: str(why) for k, why in zip(places, read, strict=True) if why is not True}
                    reasons |= bad
                    block = {"from": start, "to": places.stop, "bad": bad}
                    log.write(json.dumps(block).encode() + b"\n")
                    log.flush()
                    if progress is not None:
                        progress(f"checking {self.what}", places.stop, n)
        except OSError as error:
            raise InputError(
                f"Cannot write {self.path}: {error.strerror}. Choose another folder with the option "
                f"cache or the environment variable {CACHE_VARIABLE}."
            ) from error
        return reasons


class _Source:
    """Where the images of some classes are."""

    def __init__(
        self, root: Path, wnids: Sequence[str], cache: Path, progress: ProgressCallback | None
    ) -> None:
        self.root, self.wnids, self.cache, self.progress = root, wnids, cache, progress
        images = root / KAGGLE if (root / KAGGLE).is_dir() else root
        self.train_folder, self.val_folder = images / "train", images / "val"
        self.train_tar = _first(root / TRAIN_TAR, images / TRAIN_TAR)
        self.val_tar = _first(root / VAL_TAR, images / VAL_TAR)

    @cached_property
    def _val_has_folders(self) -> bool:
        return self.val_folder.is_dir() and bool(_folders(self.val_folder))

    @property
    def empty(self) -> bool:
        """Whether nothing of it is there."""
        folders = self.train_folder.is_dir() or self.val_folder.is_dir()
        return not folders and self.train_tar is None and self.val_tar is None

    def check(self) -> None:
        """Raise with what is missing or odd, and the command that mends it."""
        root = shlex.quote(str(self.root))
        if not self.train_folder.is_dir() and self.train_tar is None:
            raise InputError(
                f"{self.root} has neither train/ (a folder for each class) nor {TRAIN_TAR}. Give the "
                "folder that holds one of them. Both come from image-net.org, after signing in, or from "
                "Kaggle: kaggle competitions download -c imagenet-object-localization-challenge "
                f"-p {root}"
            )
        if not self.val_folder.is_dir() and self.val_tar is None:
            raise InputError(
                f"{self.root} has neither val/ nor {VAL_TAR}. Move the archive there, or unpack it: "
                f"mkdir {root}/val && tar -xf {VAL_TAR} -C {root}/val"
            )
        if self.train_folder.is_dir():
            self._check_folders(self.train_folder)
        if self._val_has_folders:
            self._check_folders(self.val_folder)
        else:
            _ = self._truth  # told here if it is not there

    def _check_folders(self, folder: Path) -> None:
        there = _folders(folder)
        tars = sorted(entry.name for entry in os.scandir(folder) if entry.name.endswith(".tar"))
        packed = sorted({name.removesuffix(".tar") for name in tars} & set(self.wnids))
        inside = shlex.quote(str(folder))
        if packed:
            raise InputError(
                f"{folder} has {len(packed)} archives of classes that are not unpacked, such as "
                f"{packed[0]}.tar. Unpack them: cd {inside} && for t in n*.tar; do mkdir -p ${{t%.tar}} "
                f"&& tar -xf $t -C ${{t%.tar}} && rm $t; done  (or give the folder of {TRAIN_TAR}, "
                "which is read as it is)"
            )
        missing = sorted(set(self.wnids) - there)
        if missing:
            others = sorted(name for name in there if not _WNID.fullmatch(name))
            hint = f" There are folders of other names: {first_of(others)}." if others else ""
            raise InputError(
                f"{folder} lacks {len(missing)} of the {len(self.wnids)} class folders: "
                f"{first_of(missing)}.{hint} Unpack {TRAIN_TAR if folder.name == 'train' else VAL_TAR} "
                f"again. Folders of other classes are a data set of your own: imagefolder:{self.root}"
            )

    def train(self) -> _Split:
        """List the training images."""
        if self.train_folder.is_dir():
            return self._listed(self.train_folder, "listing train")
        split = _Split()
        tar = self.train_tar or Path(TRAIN_TAR)
        index = self._index(tar, nested=True)
        for label, wnid in enumerate(self.wnids):
            if wnid not in index:
                raise InputError(f"{tar} lacks {wnid}.tar. Fetch the archive again.")
            names, places = index[wnid]
            split.add(label, str(tar), names, places)
        return split

    def test(self) -> _Split:
        """List the test images, with their classes."""
        if self._val_has_folders:
            return self._listed(self.val_folder, "listing val")
        truth = {stem: wnid for stem, wnid in self._truth.items() if wnid in set(self.wnids)}
        by_class: dict[str, list[str]] = {wnid: [] for wnid in self.wnids}
        split, index = _Split(), None
        if self.val_folder.is_dir():
            folder, there = self.val_folder, _images(self.val_folder)
        else:
            folder = self.val_tar or Path(VAL_TAR)
            index = self._index(folder, nested=False)[""]
            there = list(index[0])
        known = {name.partition(".")[0]: name for name in there}
        if absent := sorted(set(truth) - set(known)):
            again = f"Unpack {VAL_TAR} again." if index is None else "Fetch it again."
            raise InputError(
                f"{folder} lacks {len(absent)} of the {len(truth)} test images of these classes: "
                f"{first_of(absent)}. {again}"
            )
        for stem, wnid in truth.items():
            by_class[wnid].append(known[stem])
        rows = None if index is None else dict(zip(index[0], index[1], strict=True))
        for label, wnid in enumerate(self.wnids):
            names = by_class[wnid]
            if not names:
                raise InputError(
                    f"The file of the truth names no test image of the class {wnid}. Fetch it again."
                )
            split.add(
                label, str(folder), names, None if rows is None else np.array([rows[n] for n in names])
            )
        return split

    @cached_property
    def _truth(self) -> dict[str, str]:
        """The class of each test image, by the beginning of its name."""
        above = self.root.absolute().parents[len(KAGGLE.parts) - 1 :][:1]
        kaggles = above if self.root.absolute().match(str(KAGGLE)) else ()
        for place in (folder / SOLUTION for folder in (self.root, self.val_folder, *kaggles)):
            if place.is_file():
                return _solution(place)
        for folder in (self.root, self.val_folder, self.root / "devkit"):
            data = _first(folder / DEVKIT / "data", folder / "data", folder)
            if data and (data / _TRUTH).is_file() and (data / _SYNSETS).is_file():
                return _devkit(
                    (data / _TRUTH).read_text(encoding="utf-8"), (data / _SYNSETS).read_bytes()
                )
        packed = self.root / DEVKIT_TAR
        if packed.is_file():
            try:
                with tarfile.open(packed, "r:gz") as archive:
                    files = [archive.extractfile(f"{DEVKIT}/data/{name}") for name in (_TRUTH, _SYNSETS)]
                    parts = [b"" if file is None else file.read() for file in files]
            except (tarfile.TarError, EOFError, KeyError, zlib.error) as error:
                raise InputError(f"{packed} is damaged ({error}). Fetch it again.") from error
            return _devkit(parts[0].decode("utf-8"), parts[1])
        root = shlex.quote(str(self.root))
        images = self.val_folder if self.val_folder.is_dir() else self.val_tar
        raise InputError(
            f"The test images in {images} are not in class folders, and {self.root} has neither "
            f"{SOLUTION} nor {DEVKIT}. Put the official "
            f"{DEVKIT_TAR} there: wget -P {root} "
            f"https://image-net.org/data/ILSVRC/2012/{DEVKIT_TAR}"
        )

    def outlined(
        self, options: Mapping[str, Any]
    ) -> tuple[tuple[ImageSet, Tensor], tuple[ImageSet, Tensor], tuple[str, ...]]:
        """Return both splits with nothing but the number of images of each class, and what to know."""
        made, notes = [], []
        if self.empty:
            notes.append(
                f"{self.root} has neither train/ nor {TRAIN_TAR}: images are those published. The two "
                f"archives take {_ARCHIVES / 2**30:.0f} GiB, and are read as they are"
            )
        for what, images in (("train", TRAIN_IMAGES), ("val", VAL_IMAGES)):
            counts = [] if self.empty else self._counted(what)
            if len(counts) < len(self.wnids) and not self.empty:
                notes.append(
                    f"{what}: the images of {len(counts)} of {len(self.wnids)} classes were counted; "
                    f"for the others stands the official mean, {images // 1000} a class"
                )
            notes += _odd(what, self.wnids, counts)
            # The mean of a class, so rounded that a thousand have the official number
            stops = [k * images // 1000 for k in range(len(counts), len(self.wnids) + 1)]
            counts += [stop - start for start, stop in pairwise(stops)]
            labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
            names, folder_of = np.zeros(len(labels), dtype="S1"), np.zeros(len(labels), dtype=np.int32)
            made.append((ImageSet(ImageFiles([""], folder_of, names, "outline", **options)), labels))
        return made[0], made[1], tuple(notes)

    def _counted(self, what: str) -> list[int]:
        """Return the number of images of each class, of as many classes as a short time suffices for."""
        if what == "val" and not self._val_has_folders:
            known = Counter(self._truth.values())
            return [max(1, known[wnid]) for wnid in self.wnids]
        folder, until = self.train_folder if what == "train" else self.val_folder, time.monotonic()
        counts: list[int] = []
        for wnid in self.wnids if folder.is_dir() else ():
            if time.monotonic() > until + _COUNTING:
                break
            counts.append(max(1, sum(1 for _ in os.scandir(folder / wnid))))
        return counts

    def _listed(self, folder: Path, what: str) -> _Split:
        split = _Split()
        for label, wnid in enumerate(self.wnids):
            names = _images(folder / wnid)
            if not names:
                raise InputError(
                    f"The class folder {folder / wnid} holds no images. Unpack {wnid}.tar into it again."
                )
            split.add(label, str(folder / wnid), names)
            if self.progress is not None:
                self.progress(what, label + 1, len(self.wnids))
        return split

    def _index(self, tar: Path, nested: bool) -> dict[str, tuple[list[str], npt.NDArray[np.int64]]]:
        """Return name, first byte and length of the images in an archive, by class."""
        status = tar.stat()
        facts = f"1 {tar.name} {status.st_size} {status.st_mtime_ns}"
        index_file = self.cache / f"index-{hashlib.sha256(facts.encode()).hexdigest()[:24]}.npz"
        try:
            return _read_index(index_file)
        except (OSError, ValueError, KeyError):
            pass
        rows: list[tuple[str, str, int, int]] = []
        try:
            for wnid, name, first, length in _members(tar, nested):
                rows.append((wnid, name, first, length))
                if self.progress is not None and len(rows) % 1000 == 0:
                    self.progress(f"reading {tar.name}", first + length, status.st_size)
        except (tarfile.TarError, EOFError) as error:
            raise InputError(f"{tar} is damaged ({error}). Fetch it again.") from error
        if not rows:
            raise InputError(f"{tar} holds no images. Fetch it again.")
        arrays: dict[str, Any] = {
            "classes": np.array([row[0] for row in rows], dtype=np.bytes_),
            "names": np.array([os.fsencode(row[1]) for row in rows], dtype=np.bytes_),
            "places": np.array([row[2:] for row in rows], dtype=np.int64),
        }
        try:
            with replacing(index_file, make_folder=True) as draft, draft.open("wb") as file:
                np.savez(file, **arrays)
        except ACILError as error:
            raise InputError(
                f"Cannot keep where the images of {tar} stand: {error} Choose another folder with the "
                f"option cache or the environment variable {CACHE_VARIABLE}."
            ) from error
        return _read_index(index_file)


def _odd(what: str, wnids: Sequence[str], counts: Sequence[int]) -> list[str]:
    """Return what to say of classes with other numbers of images than the official ones: mostly nothing.

    Examples
    --------
    >>> _odd("val", ["n01440764", "n01443537"], [50, 49])[0].partition(".")[0]
    'val: 1 of 2 classes has not the 50 images of ILSVRC 2012: n01443537 (49)'
    """
    official = _PER_CLASS[what]
    odd = [k for k, count in enumerate(counts) if count not in official]
    if not odd:
        return []
    numbers = f"{official[0]} to {official[-1]}" if len(official) > 1 else str(official[0])
    shown = first_of([f"{wnids[k]} ({counts[k]})" for k in odd])
    verb = "has" if len(odd) == 1 else "have"
    return [
        f"{what}: {len(odd)} of {len(counts)} classes {verb} not the {numbers} images of ILSVRC 2012: "
        f"{shown}. Unpack {TRAIN_TAR if what == 'train' else VAL_TAR} again, unless you have chosen them"
    ]


def _existing(root: Path | None, outline: bool) -> Path:
    if root is None:
        raise InputError(
            f"Which folder holds ImageNet? Write imagenet:DIR, give --root DIR or set {ROOT_VARIABLE}."
        )
    if not root.is_dir() and not (outline and not root.exists()):
        raise InputError(f"There is no folder {root}. Give the one that holds ImageNet.")
    return root


def _first(*places: Path) -> Path | None:
    return next((place for place in places if place.exists()), None)


def _folders(folder: Path) -> set[str]:
    return {entry.name for entry in os.scandir(folder) if entry.name[:1] != "." and entry.is_dir()}


def _images(folder: Path) -> list[str]:
    """Return the names of the images in a folder, which are told by their ends."""
    endings = tuple(SUFFIXES)
    names = (entry.name for entry in os.scandir(folder))
    return [name for name in names if name.lower().endswith(endings) and name[0] != "."]


def _members(tar: Path, nested: bool) -> Iterator[tuple[str, str, int, int]]:
    """Yield class, name, first byte and length of each image; in a nested archive, of those in it."""
    with tarfile.open(tar, "r:") as outer:
        for member in outer:
            if not nested:
                if member.isfile():
                    yield "", Path(member.name).name, member.offset_data, member.size
                # What `tarfile` remembers of each would grow with the archive.
                outer.members = []  # type: ignore[attr-defined]
                continue
            with tar.open("rb") as file:
                file.seek(member.offset_data)
                with tarfile.open(fileobj=file, mode="r:") as inner:
                    for image in inner:
                        if image.isfile():
                            wnid = Path(member.name).stem
                            yield wnid, Path(image.name).name, image.offset_data, image.size


def _read_index(path: Path) -> dict[str, tuple[list[str], npt.NDArray[np.int64]]]:
    with np.load(path, allow_pickle=False) as stored:
        classes, names, places = (stored[name] for name in ("classes", "names", "places"))
    index: dict[str, tuple[list[str], npt.NDArray[np.int64]]] = {}
    # Rows of a class stand together.
    starts = [0, *(np.flatnonzero(classes[1:] != classes[:-1]) + 1).tolist(), len(classes)]
    for start, stop in pairwise(starts):
        there = [os.fsdecode(name) for name in names[start:stop].tolist()]
        index[os.fsdecode(classes[start])] = (there, places[start:stop])
    return index


def _solution(path: Path) -> dict[str, str]:
    """Read Kaggle's table: ImageId, and the class followed by boxes."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.reader(file))
    truth = {row[0]: row[1].split()[0] for row in rows if len(row) == 2 and _WNID.match(row[1])}
    if not truth:
        raise InputError(f"{path} names no class of any image. Fetch it from Kaggle again.")
    return truth


def _devkit(truth: str, synsets: bytes) -> dict[str, str]:
    """Read the official truth: a number for each test image, and which class has which number."""
    from scipy.io import loadmat

    table = loadmat(io.BytesIO(synsets), squeeze_me=True)["synsets"]
    wnid_of = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in table}
    numbers = [int(line) for line in truth.split()]
    unknown = sorted(set(numbers) - set(wnid_of))
    if unknown or not numbers:
        raise InputError(
            f"{_TRUTH} and {_SYNSETS} do not fit together (numbers {first_of(unknown)}). Unpack "
            f"{DEVKIT_TAR} again."
        )
    return {f"ILSVRC2012_val_{k:08d}": wnid_of[number] for k, number in enumerate(numbers, start=1)}
