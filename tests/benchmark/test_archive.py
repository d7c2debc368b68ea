"""Archives are unpacked whole or not at all, and never outside their folder."""

import io
import os
import stat
import tarfile
import zipfile

import pytest

from acil.benchmark.archive import unpack
from acil.errors import InputError

GOOD = {"data/a.txt": b"one", "data/deep/b.bin": b"\0" * 5000, "data/empty": b""}


def member(name, content=b"x", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, content


def make_tar(path, members, mode="w:gz"):
    with tarfile.open(path, mode) as file:
        for info, content in members:
            file.addfile(info, io.BytesIO(content))
    return path


def make_zip(path, contents):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in contents.items():
            file.writestr(name, content)
    return path


def open_archive(path, root, **options):
    return unpack(path, root, "data", **{"max_bytes": 10_000, **options})


def left(root, *archives):
    """What lies in the folder besides the archives."""
    return sorted({path.name for path in root.iterdir()} - set(archives))


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz", "w"])
def test_tar_of_any_compression_is_unpacked(tmp_path, mode):
    archive = make_tar(tmp_path / "a.tar", [member(n, c, mode=0o4777) for n, c in GOOD.items()], mode)
    assert open_archive(archive, tmp_path) == tmp_path / "data"
    assert {n: (tmp_path / n).read_bytes() for n in GOOD} == GOOD
    assert stat.S_IMODE((tmp_path / "data/a.txt").stat().st_mode) & 0o7111 == 0
    assert left(tmp_path, "a.tar") == ["data"]


def test_zip_is_unpacked_and_progress_told(tmp_path):
    archive = make_zip(tmp_path / "a.zip", {"data/": b"", **GOOD})
    told = []
    open_archive(archive, tmp_path, progress=lambda *step: told.append(step))
    assert {n: (tmp_path / n).read_bytes() for n in GOOD} == GOOD
    assert told[-1] == ("unpacking a.zip", 5003, None)


def test_name_beginning_with_a_dot_slash_is_the_same_name(tmp_path):
    open_archive(make_tar(tmp_path / "a.tgz", [member("./data/a", b"1")]), tmp_path)
    assert (tmp_path / "data/a").read_bytes() == b"1"


@pytest.mark.parametrize(
    "bad",
    [
        member("/data/absolute"),
        member("../outside"),
        member("data/../../outside"),
        member("other/a"),
        member("data\\..\\a"),
        member("data/link", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("data/link", b"", type=tarfile.SYMTYPE, linkname="a.txt"),
        member("data/hard", b"", type=tarfile.LNKTYPE, linkname="../../x"),
        member("data/pipe", b"", type=tarfile.FIFOTYPE),
        member("data/device", b"", type=tarfile.CHRTYPE),
        member("data/a.txt", b"twice"),
        member("data", b"a file in the place of the folder"),
    ],
    ids=lambda pair: f"{pair[0].name}-{pair[0].type}",
)
def test_hostile_tar_is_refused_as_a_whole(tmp_path, bad):
    root = tmp_path / "root"
    root.mkdir()
    archive = make_tar(tmp_path / "a.tgz", [member("data/a.txt", b"fine"), bad])
    with pytest.raises(InputError):
        open_archive(archive, root)
    assert left(root) == []
    assert left(tmp_path, "a.tgz") == ["root"]


@pytest.mark.parametrize("name", ["../outside", "/absolute", "other/a", "data/../../a"])
def test_hostile_zip_is_refused_as_a_whole(tmp_path, name):
    root = tmp_path / "root"
    root.mkdir()
    with pytest.raises(InputError, match="does not lie in 'data'"):
        open_archive(make_zip(tmp_path / "a.zip", {"data/a": b"1", name: b"2"}), root)
    assert left(root) == []


def test_link_in_a_zip_is_refused(tmp_path):
    entry = zipfile.ZipInfo("data/link")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr(entry, "/etc/passwd")
    with pytest.raises(InputError, match="link"):
        open_archive(tmp_path / "a.zip", tmp_path)


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_bomb_is_stopped_at_the_limit(tmp_path, kind):
    zeros = bytes(50_000_000)
    if kind == "tar":
        archive = make_tar(tmp_path / "a", [member("data/zeros", zeros)])
    else:
        archive = make_zip(tmp_path / "a", {"data/zeros": zeros})
    assert archive.stat().st_size < 100_000
    with pytest.raises(InputError, match="more than it should"):
        open_archive(archive, tmp_path)
    assert left(tmp_path, "a") == []


def test_limit_counts_all_files_together(tmp_path):
    archive = make_tar(tmp_path / "a", [member(f"data/{i}", bytes(3000)) for i in range(4)])
    with pytest.raises(InputError, match="more than it should"):
        open_archive(archive, tmp_path)
    open_archive(archive, tmp_path, max_bytes=12_000)


@pytest.mark.parametrize("mode", ["w:gz", "w:xz", "w:bz2"])
def test_truncated_archive_is_an_error_and_leaves_nothing(tmp_path, mode):
    content = os.urandom(9000)
    archive = make_tar(tmp_path / "a", [member("data/a", content)], mode)
    archive.write_bytes(archive.read_bytes()[:5000])
    with pytest.raises(InputError, match=r"Cannot unpack|damaged"):
        open_archive(archive, tmp_path)
    assert left(tmp_path, "a") == []


def test_something_else_is_not_an_archive(tmp_path):
    (tmp_path / "a").write_bytes(b"hello" * 1000)
    with pytest.raises(InputError, match="damaged"):
        open_archive(tmp_path / "a", tmp_path)
    with pytest.raises(InputError, match="Cannot unpack"):
        open_archive(tmp_path / "nosuch", tmp_path)


def test_existing_folder_stays_unless_replaced(tmp_path):
    archive = make_tar(tmp_path / "a", [member("data/new", b"1")])
    (tmp_path / "data").mkdir()
    (tmp_path / "data/old").write_bytes(b"0")
    with pytest.raises(InputError, match="--force"):
        open_archive(archive, tmp_path)
    assert left(tmp_path / "data") == ["old"]
    bad = make_tar(tmp_path / "b", [member("data/new"), member("../x")])
    with pytest.raises(InputError):
        open_archive(bad, tmp_path, replace=True)
    assert left(tmp_path / "data") == ["old"]
    open_archive(archive, tmp_path, replace=True)
    assert left(tmp_path / "data") == ["new"]


def test_leftover_of_a_killed_process_is_no_obstacle(tmp_path):
    (tmp_path / ".data.unpacking" / "data").mkdir(parents=True)
    (tmp_path / ".data.unpacking" / "data" / "half").write_bytes(b"1")
    open_archive(make_tar(tmp_path / "a", [member("data/new", b"1")]), tmp_path)
    assert left(tmp_path / "data") == ["new"]


def test_empty_archive_holds_no_folder(tmp_path):
    with pytest.raises(InputError, match="does not hold the folder"):
        open_archive(make_tar(tmp_path / "a", []), tmp_path)
