"""Small trees of generated photographs that have the shape of ImageNet's."""

import io
import shutil
import tarfile

import numpy as np
from PIL import Image
from scipy.io import savemat

from acil.bench.orders import imagenet_classes

HUNDRED = imagenet_classes()[:100]


def photograph(label, number, size=(60, 48)):
    """A JPEG whose colour and grain say its class."""
    rng = np.random.default_rng([label, number])
    pixels = rng.integers(0, 80, (*size[::-1], 3))
    pixels[..., label % 3] += 40 + label
    held = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(held, "JPEG", quality=80)
    return held.getvalue()


def write_tree(root, each=(3, 1), wnids=HUNDRED, flat=False, truth="csv", size=(60, 48)):
    """Write train/WNID/ and val/, which has class folders or is flat with a file of the truth."""
    n = 0
    truths = []
    for label, wnid in enumerate(wnids):
        folder = root / "train" / wnid
        folder.mkdir(parents=True)
        for k in range(each[0]):
            (folder / f"{wnid}_{k}.JPEG").write_bytes(photograph(label, k, size))
        folder = root / "val" if flat else root / "val" / wnid
        folder.mkdir(parents=True, exist_ok=True)
        for k in range(each[1]):
            n += 1
            (folder / f"ILSVRC2012_val_{n:08d}.JPEG").write_bytes(photograph(label, 1000 + k, size))
            truths.append(wnid)
    if flat and truth == "csv":
        lines = [f"ILSVRC2012_val_{k:08d},{wnid} 1 2 3 4 \n" for k, wnid in enumerate(truths, 1)]
        (root / "LOC_val_solution.csv").write_text("ImageId,PredictionString\n" + "".join(lines))
    elif flat and truth == "devkit":
        write_devkit(root / "ILSVRC2012_devkit_t12" / "data", truths)
    return root


def write_devkit(folder, truths):
    """Write the development kit's two files; its numbers are not those of the sorted names."""
    folder.mkdir(parents=True)
    numbers = {wnid: 1 + (7 * k) % 100 for k, wnid in enumerate(HUNDRED)}
    kinds = [("ILSVRC2012_ID", "i4"), ("WNID", "O"), ("words", "O")]
    rows = [(number, wnid, "a thing") for wnid, number in numbers.items()]
    savemat(folder / "meta.mat", {"synsets": np.array(rows, dtype=kinds).reshape(-1, 1)})
    text = "".join(f"{numbers[wnid]}\n" for wnid in truths)
    (folder / "ILSVRC2012_validation_ground_truth.txt").write_text(text)


def packed(tree, root):
    """Pack the folders of a flat tree into the official archives."""
    root.mkdir()
    with tarfile.open(root / "ILSVRC2012_img_train.tar", "w") as outer:
        for folder in sorted((tree / "train").iterdir()):
            held = io.BytesIO()
            with tarfile.open(fileobj=held, mode="w") as inner:
                for file in sorted(folder.iterdir()):
                    inner.add(file, file.name)
            entry = tarfile.TarInfo(f"{folder.name}.tar")
            entry.size = held.tell()
            held.seek(0)
            outer.addfile(entry, held)
    with tarfile.open(root / "ILSVRC2012_img_val.tar", "w") as archive:
        for file in sorted((tree / "val").iterdir()):
            archive.add(file, file.name)
    shutil.copy(tree / "LOC_val_solution.csv", root)
    return root
