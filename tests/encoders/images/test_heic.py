"""HEIC images: read with pillow-heif, and called by their name without it."""

import io
import sys
import types

import pytest
from PIL import Image, ImageFile

from acil.encoders.images import decode as decoding
from acil.encoders.images.decode import decode
from acil.encoders.images.listing import list_files
from acil.errors import InputError

#: The beginning of a file of a phone
START = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"


class OneColour(ImageFile.ImageFile):
    """Stands for the reader of pillow-heif."""

    format = "HEIF"

    def _open(self):
        self._size, self._mode = (8, 8), "RGB"

    def load(self):
        self.im = Image.new("RGB", (8, 8), (200, 10, 10)).im


@pytest.fixture
def reader(monkeypatch):
    """Install what stands for pillow-heif, or make it missing."""
    decoding._available()  # what Pillow loads now, it does not load again

    def install(there):
        module = types.ModuleType("pillow_heif")
        module.register_heif_opener = lambda: Image.register_open(
            "HEIF", OneColour, lambda start: start[4:12] == b"ftypheic"
        )
        monkeypatch.setitem(sys.modules, "pillow_heif", module if there else None)
        monkeypatch.setattr(Image, "OPEN", {k: v for k, v in Image.OPEN.items() if k != "HEIF"})
        decoding._available.cache_clear()

    yield install
    decoding._available.cache_clear()


def test_heic_is_read_where_pillow_heif_is_installed(reader, tmp_path):
    reader(there=True)
    (tmp_path / "a.HEIC").write_bytes(START)
    (file,) = list_files([tmp_path])
    assert decode(file, 4)[:, 0, 0].tolist() == [200, 10, 10]
    assert decode(START, 4)[:, 0, 0].tolist() == [200, 10, 10]


def test_heic_is_called_so_where_it_cannot_be_read(reader, tmp_path):
    reader(there=False)
    (tmp_path / "a.heic").write_bytes(START)
    for source in (tmp_path / "a.heic", START):
        with pytest.raises(InputError, match="pillow-heif"):
            decode(source, 4)
    with pytest.raises(InputError, match="known format"):
        decode(b"no image", 4)


def test_heic_of_the_real_package_is_read(tmp_path):
    heif = pytest.importorskip("pillow_heif")
    heif.register_heif_opener()
    content = io.BytesIO()
    Image.new("RGB", (64, 64), (200, 10, 10)).save(content, "HEIF", quality=95)
    decoding._available.cache_clear()
    found = decode(content.getvalue(), 4)[:, 0, 0].tolist()
    assert all(abs(a - b) < 12 for a, b in zip(found, (200, 10, 10), strict=True))
