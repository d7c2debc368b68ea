"""`acil data prepare`: fetched from a server in this process, or taken from where it is."""

import functools
import gc
import hashlib
import http.server
import io
import json
import shutil
import stat
import tarfile
import threading

import numpy as np
import pytest
from typer.testing import CliRunner

from acil.bench.datasets import cifar100
from acil.cli import app
from acil.cli.shared import progress_bars

BINARY = "cifar-100-binary.tar.gz"

# pooch leaves the sockets of failed answers to the garbage collector, which comes before other tests do.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(scope="module", autouse=True)
def _collected():
    yield
    gc.collect()


def official_files(n_train=100, n_test=100):
    """Files of the official binary layout, with fewer images."""
    generator = np.random.default_rng(0)
    files = {"fine_label_names.txt": "\n".join(f"c{i}" for i in range(100)).encode()}
    for name, n in (("train.bin", n_train), ("test.bin", n_test)):
        labels = np.arange(n) % 100
        pixels = generator.integers(0, 256, (n, 3072))
        files[name] = np.column_stack([labels % 20, labels, pixels]).astype(np.uint8).tobytes()
    return files


def make_archive(path, files, *others):
    """Write an archive of these files, and of other members as they are; return its checksum."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(f"cifar-100-binary/{name}")
            info.size, info.mode = len(content), 0o4777
            archive.addfile(info, io.BytesIO(content))
        for info in others:
            archive.addfile(info)
    return hashlib.md5(path.read_bytes()).hexdigest()


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and notes what is asked for."""

    def do_GET(self):
        self.server.asked.append(self.path)
        if self.server.failures:
            self.server.failures.pop()(self)
        else:
            super().do_GET()

    def busy(self):
        self.send_error(503)

    def break_off(self):
        content = (self.server.folder / BINARY).read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:1000])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server with the archive, whose checksum is the official one for this test."""
    folder = tmp_path / "served"
    folder.mkdir()
    monkeypatch.setattr(cifar100, "MD5", make_archive(folder / BINARY, official_files()))
    monkeypatch.setattr("pooch.core.time.sleep", lambda _: None)
    monkeypatch.setattr(cifar100, "RECORDS", {"train": 100, "test": 100})
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("ACIL_DATA", raising=False)
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=folder)
    )
    server.asked, server.failures, server.folder = [], [], folder
    address = f"http://127.0.0.1:{server.server_address[1]}/"
    monkeypatch.setattr(cifar100, "ADDRESS", address)
    server.address = address
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def run(*arguments):
    return CliRunner().invoke(app, ["data", "prepare", *map(str, arguments)])


def report(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(*arguments):
    """Return what the command says when it fails."""
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    return result.stderr


def test_cifar100_is_fetched_checked_unpacked_and_loaded(server, tmp_path):
    found = report("cifar100", "--root", tmp_path / "new" / "data")
    assert (found["train"], found["test"], found["classes"]) == (100, 100, 100)
    assert found["shape"] == "3 x 32 x 32"
    assert server.asked == [f"/{BINARY}"]
    assert {path.name for path in (tmp_path / "new" / "data").iterdir()} == {BINARY, "cifar-100-binary"}
    mode = (tmp_path / "new" / "data" / "cifar-100-binary" / "train.bin").stat().st_mode
    assert stat.S_IMODE(mode) & 0o7022 == 0


def test_result_goes_to_stdout_and_no_bar_without_a_terminal(server, tmp_path):
    result = run("cifar100", "--root", tmp_path)
    assert "classes   100" in result.stdout
    assert result.stderr == ""


def test_what_is_there_is_not_fetched_again_and_a_copy_by_hand_needs_no_network(server, tmp_path):
    first = report("cifar100", "--root", tmp_path)
    assert report("cifar100", "--root", tmp_path)["identity"] == first["identity"]
    (tmp_path / "copy").mkdir()
    shutil.copy(server.folder / BINARY, tmp_path / "copy")
    assert report("cifar100", "--root", tmp_path / "copy")["train"] == 100
    assert len(server.asked) == 1


def test_archive_that_is_another_file_is_refused_then_replaced(server, tmp_path):
    (tmp_path / BINARY).write_bytes(b"not an archive")
    assert "--force" in refused("cifar100", "--root", tmp_path)
    assert not (tmp_path / "cifar-100-binary").exists()
    assert report("cifar100", "--root", tmp_path, "--force")["train"] == 100


def test_force_mends_damaged_and_incomplete_files_from_the_archive(server, tmp_path):
    folder = tmp_path / "cifar-100-binary"
    report("cifar100", "--root", tmp_path)
    (folder / "train.bin").write_bytes(b"short")
    assert "train.bin has 5 bytes" in refused("cifar100", "--root", tmp_path)
    assert report("cifar100", "--root", tmp_path, "--force")["train"] == 100
    (folder / "train.bin").rename(folder / "mine")
    assert "--force" in refused("cifar100", "--root", tmp_path)
    assert (folder / "mine").exists()
    assert report("cifar100", "--root", tmp_path, "--force")["train"] == 100
    assert not (folder / "mine").exists()
    assert len(server.asked) == 1


def test_another_address_may_serve_it(server, tmp_path, monkeypatch):
    monkeypatch.setattr(cifar100, "ADDRESS", "http://127.0.0.1:9/")
    assert (
        report("cifar100", "--root", tmp_path, "--url", server.address + BINARY + "?a=1")["test"] == 100
    )
    assert BINARY in refused(
        "cifar100", "--root", tmp_path / "b", "--url", server.address + "other.tar.gz"
    )


def test_wrong_content_from_the_server_is_refused(server, tmp_path):
    make_archive(server.folder / BINARY, official_files(n_train=50))
    assert "md5" in refused("cifar100", "--root", tmp_path)
    assert list(tmp_path.glob("cifar*")) == []


@pytest.mark.parametrize("failure", [Handler.busy, Handler.break_off])
def test_failed_download_is_tried_three_times_and_leaves_nothing(server, tmp_path, failure):
    server.failures = [failure] * 5
    assert "Try again later" in refused("cifar100", "--root", tmp_path / "data")
    assert len(server.asked) == 3
    assert list((tmp_path / "data").iterdir()) == []
    assert report("cifar100", "--root", tmp_path / "data")["train"] == 100
    assert len(server.asked) == 6


def test_addresses_that_are_not_of_the_web_are_refused(server, tmp_path):
    assert "Cannot fetch file://" in refused(
        "cifar100", "--root", tmp_path / "data", "--url", f"file://{server.folder}/{BINARY}"
    )


def hostile(name, **fields):
    info = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(info, key, value)
    return info


@pytest.mark.parametrize(
    "fields",
    [
        {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"},
        {"type": tarfile.SYMTYPE, "linkname": "../../secret"},
        {"type": tarfile.LNKTYPE, "linkname": "../secret"},
        {"type": tarfile.FIFOTYPE},
        {"type": tarfile.CHRTYPE},
    ],
)
def test_hostile_member_is_refused_and_leaves_nothing(server, tmp_path, monkeypatch, fields):
    root, bad = tmp_path / "data", hostile("cifar-100-binary/train.bin", **fields)
    checksum = make_archive(server.folder / BINARY, official_files(), bad)
    monkeypatch.setattr(cifar100, "MD5", checksum)
    assert "Cannot unpack" in refused("cifar100", "--root", root)
    assert [path.name for path in root.iterdir()] == [BINARY]


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "cifar-100-binary/../../outside", "x"])
def test_members_that_are_not_asked_for_are_left_in_the_archive(server, tmp_path, monkeypatch, name):
    root = tmp_path / "data"
    checksum = make_archive(server.folder / BINARY, official_files(), hostile(name))
    monkeypatch.setattr(cifar100, "MD5", checksum)
    assert report("cifar100", "--root", root)["train"] == 100
    assert {path.name for path in root.iterdir()} == {BINARY, "cifar-100-binary"}
    assert {path.name for path in tmp_path.iterdir()} == {"served", "data"}
    assert {path.name for path in (root / "cifar-100-binary").iterdir()} == set(cifar100.FILES)


@pytest.mark.parametrize("content", [b"no archive", b""])
def test_archive_without_the_files_is_a_clear_error(server, tmp_path, monkeypatch, content):
    (server.folder / BINARY).write_bytes(content)
    monkeypatch.setattr(cifar100, "MD5", hashlib.md5(content).hexdigest())
    assert "Cannot unpack" in refused("cifar100", "--root", tmp_path)
    monkeypatch.setattr(cifar100, "MD5", make_archive(server.folder / BINARY, {"train.bin": b""}))
    assert "test.bin" in refused("cifar100", "--root", tmp_path, "--force")
    assert not (tmp_path / "cifar-100-binary").exists()


def test_progress_is_told_while_the_archive_arrives(server, tmp_path):
    told = []
    cifar100.prepare(tmp_path, progress=lambda *step: told.append(step))
    size = (server.folder / BINARY).stat().st_size
    assert told[-1] == (BINARY, size, size)


def test_missing_file_says_what_to_do_by_hand(server, tmp_path):
    (server.folder / BINARY).unlink()
    told = refused("cifar100", "--root", tmp_path)
    assert "404" in told
    assert f"copy it to {tmp_path / BINARY}" in told


def test_root_is_needed_and_may_come_from_the_environment(server, tmp_path, monkeypatch):
    assert "--root DIR or set ACIL_DATA" in refused("cifar100")
    monkeypatch.setenv("ACIL_DATA", str(tmp_path))
    assert report("cifar100")["root"] == str(tmp_path)


def test_data_that_need_no_fetching_are_checked_where_they_are(tmp_path):
    assert report("digits")["classes"] == 10
    features = np.eye(4, dtype=np.float32)
    np.savez(
        tmp_path / "f.npz", X_train=features, y_train=[0, 1] * 2, X_test=features, y_test=[0, 1] * 2
    )
    assert report(f"features:{tmp_path / 'f.npz'}")["shape"] == "4"
    assert "nothing to fetch" in refused("digits", "--url", "http://127.0.0.1/x")


def test_options_of_the_data_set_are_passed_on(tmp_path):
    from PIL import Image

    for split in ("train", "val"):
        (tmp_path / split / "a").mkdir(parents=True)
        Image.new("RGB", (9, 9)).save(tmp_path / split / "a" / "1.png")
    (tmp_path / "train" / "a" / "2.png").write_bytes(b"bad")
    assert run(f"imagefolder:{tmp_path}", "--set", "size=4").exit_code == 1
    found = report(f"imagefolder:{tmp_path}", "--set", "size=4", "--skip-bad")
    assert (found["shape"], found["skipped"]) == ("3 x 4 x 4", 1)
    result = run("digits", "--set", "size")
    assert (result.exit_code, "given as key=value" in result.stderr) == (2, True)
    assert run("digits", "--set", "size=4").exit_code == 1


def test_folder_that_cannot_be_made_is_told(server, tmp_path):
    (tmp_path / "file").write_text("")
    assert "Cannot use the folder" in refused("cifar100", "--root", tmp_path / "file" / "data")


def test_interrupt_says_what_to_do(server, tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cifar100, "_fetch", interrupted)
    result = run("cifar100", "--root", tmp_path)
    assert result.exit_code == 130
    assert "Run the same command again" in result.stderr


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_bars_are_shown_on_a_terminal_only(monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    with progress_bars() as progress:
        progress("some file", 1, 2)
    assert written.getvalue() == ""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bars() as progress:
        progress("some file", 1, 2)
        progress("some file", 2, 2)
        progress("unpacking", 7, None)
    assert "some file" in terminal.getvalue()
    assert "100%" in terminal.getvalue()
    assert "unpacking" in terminal.getvalue()
