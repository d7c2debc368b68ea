"""CIFAR-100 (Krizhevsky, 2009): fetch and read its official binary archive."""

from __future__ import annotations

import shlex
import shutil
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import torch

from acil.bench.datasets import ROOT_VARIABLE, Dataset, ProgressCallback
from acil.encoders.images.imageset import ImageSet
from acil.errors import ACILError, InputError, MissingExtraError
from acil.extras import install

ADDRESS = "https://www.cs.toronto.edu/~kriz/"
ARCHIVE = "cifar-100-binary.tar.gz"
#: The publisher's checksum.
MD5 = "03b5dce01913d631647c71ecec9e9cb8"
FOLDER = "cifar-100-binary"
FILES = ("train.bin", "test.bin", "fine_label_names.txt")
N_CLASSES = 100
#: Images in each official file. Tests set smaller numbers.
RECORDS = {"train": 50_000, "test": 10_000}
#: Further attempts after a failed download.
RETRIES = 2
_N_COARSE = 20
_SHAPE = (3, 32, 32)
#: One byte of coarse label, one byte of fine label, then the red, green and blue planes, row by row.
_RECORD = 2 + 3 * 32 * 32
_AGAIN = "Fetch it again: acil data prepare cifar100 --root DIR --force"


def load(root: Path | None) -> Dataset:
    """Return CIFAR-100 with its 100 fine classes.

    ``root`` is the folder that holds ``cifar-100-binary``, or that folder itself.
    """
    if root is None:
        raise InputError(
            f"Where is CIFAR-100? Give --root DIR or set {ROOT_VARIABLE}. To fetch it: acil data "
            "prepare cifar100 --root DIR."
        )
    folder = _found(root)
    if folder is None:
        raise InputError(
            f"{root} does not hold {FOLDER} with all its files. Run: acil data prepare cifar100 --root "
            f"{shlex.quote(str(root))} (without a network, copy {ARCHIVE} from {ADDRESS} there first)."
        )
    names = _class_names(folder)
    train, train_labels = _read(folder, "train")
    test, test_labels = _read(folder, "test")
    return Dataset(
        name="cifar100",
        train=ImageSet(train),
        train_labels=train_labels,
        test=ImageSet(test),
        test_labels=test_labels,
        class_names=names,
        default_recipe="paper",
        default_base=N_CLASSES // 2,
    )


def prepare(
    root: Path, *, url: str | None = None, force: bool = False, progress: ProgressCallback | None = None
) -> None:
    """Fetch the archive, or take the one that is there, check it and unpack it.

    ``url`` is another address of the official archive, which must keep its name. ``force`` unpacks again
    even if the data are there, and replaces an archive whose checksum is wrong.
    """
    if not force and _found(root) is not None:
        return
    address = url or ADDRESS + ARCHIVE
    if address.partition("?")[0].rpartition("/")[2] != ARCHIVE:
        raise InputError(f"The address must end with {ARCHIVE}, got {url!r}.")
    if (root / FOLDER).exists() and not force:
        raise InputError(f"{root / FOLDER} is there, but incomplete. Use --force to replace it.")
    _fetch(address, root, force, progress)
    _unpack(root)


def _fetch(url: str, root: Path, force: bool, progress: ProgressCallback | None) -> None:
    try:
        import pooch
    except ImportError as error:
        raise MissingExtraError(
            f"Fetching data needs the package pooch, which is not installed. Install it with: "
            f"{install('bench')}"
        ) from error

    pooch.get_logger().setLevel("WARNING")
    archive = root / ARCHIVE
    bar = None if progress is None else _Bar(progress)
    try:
        if archive.exists() and not force and (digest := pooch.file_hash(archive, "md5")) != MD5:
            raise InputError(
                f"{archive} has the md5 {digest}, but the official file has {MD5}: it is incomplete or "
                "another file. Remove it, or use --force to fetch it again."
            )
        # A file that is there and right is not fetched again. A new one gets its name when it is right.
        pooch.create(
            root, "", registry={ARCHIVE: f"md5:{MD5}"}, urls={ARCHIVE: url}, retry_if_failed=RETRIES
        ).fetch(ARCHIVE, downloader=pooch.HTTPDownloader(bar, chunk_size=1 << 20, timeout=30))
    except InputError:
        raise
    except (OSError, ValueError) as error:  # of the network or the disk; a wrong checksum
        raise ACILError(
            f"Cannot fetch {url}: {error}. Try again later, or without a network: fetch it on another "
            f"machine, check that its md5 is {MD5}, copy it to {archive} and run the same command again."
        ) from error


class _Bar:
    """The progress bar that pooch expects, on top of our callback."""

    total = 0

    def __init__(self, progress: ProgressCallback) -> None:
        self.progress, self.done = progress, 0

    def update(self, n: int) -> None:
        self.done += n
        self.progress(
            ARCHIVE, min(self.done, self.total) if self.total else self.done, self.total or None
        )

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass


def _unpack(root: Path) -> None:
    """Unpack the files we read, beside their place, and move them there when they are whole."""
    target = root / FOLDER
    try:
        with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=root) as draft:
            with tarfile.open(root / ARCHIVE) as file:
                for name in FILES:
                    file.extract(f"{FOLDER}/{name}", draft, filter="data")
            if target.exists():
                shutil.rmtree(target)
            (Path(draft) / FOLDER).replace(target)
    except (OSError, KeyError, EOFError, tarfile.TarError) as error:
        raise InputError(
            f"Cannot unpack {root / ARCHIVE}: {error}. Fetch it again with --force."
        ) from error


def _found(root: Path) -> Path | None:
    for folder in (root / FOLDER, root):
        if all((folder / name).is_file() for name in FILES):
            return folder
    return None


def _read(folder: Path, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    path, n = folder / f"{split}.bin", RECORDS[split]
    size = path.stat().st_size
    if size != n * _RECORD:
        raise InputError(
            f"{path} has {size:,} bytes, but {n:,} images of {_RECORD:,} bytes make {n * _RECORD:,}: it "
            f"is {'truncated' if size < n * _RECORD else 'not the official file'}. {_AGAIN}."
        )
    records = np.fromfile(path, dtype=np.uint8).reshape(n, _RECORD)
    for name, column, limit in (("coarse", 0, _N_COARSE), ("fine", 1, N_CLASSES)):
        wrong = np.flatnonzero(records[:, column] >= limit)
        if len(wrong):
            raise InputError(
                f"{path} has the {name} label {records[wrong[0], column]} in record {wrong[0]}, but "
                f"labels go from 0 to {limit - 1}: the file is damaged. {_AGAIN}."
            )
    pixels = np.ascontiguousarray(records[:, 2:]).reshape(n, *_SHAPE)
    return torch.from_numpy(pixels), torch.from_numpy(records[:, 1].astype(np.int64))


def _class_names(folder: Path) -> tuple[str, ...]:
    path = folder / "fine_label_names.txt"
    try:
        names = path.read_text(encoding="utf-8").split()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text: {error}. {_AGAIN}.") from error
    if len(names) != N_CLASSES or len(set(names)) != N_CLASSES:
        raise InputError(f"{path} must name {N_CLASSES} classes, each once, got {len(names)}. {_AGAIN}.")
    return tuple(names)
