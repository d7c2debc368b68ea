"""Downloads resume, are checked, and fail with the steps to do by hand. The server is a thread here."""

import hashlib
import os
import shutil
import socket
import threading
from collections import namedtuple
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from acil.benchmark.download import Checksum, DownloadError, download
from acil.errors import InputError

CONTENT = os.urandom(300_000)
MD5 = Checksum("md5", hashlib.md5(CONTENT).hexdigest())
SHA256 = Checksum("sha256", hashlib.sha256(CONTENT).hexdigest())


class Handler(BaseHTTPRequestHandler):
    """Does what the server's ``script`` says for each request in turn; then serves the file."""

    def do_GET(self):
        server = self.server
        server.ranges.append(self.headers.get("Range"))
        step = server.script.pop(0) if server.script else "serve"
        if isinstance(step, int):
            self.send_response(step)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start = 0
        wanted = self.headers.get("Range")
        if wanted and step != "no ranges":
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(server.content):
                self.send_error(416)
                return
            self.send_response(206)
            begin = start + (step == "wrong range")
            self.send_header(
                "Content-Range", f"bytes {begin}-{len(server.content) - 1}/{len(server.content)}"
            )
        else:
            self.send_response(200)
        body = server.content[start:]
        if step != "no length":
            self.send_header("Content-Length", str(10**15 if step == "huge" else len(body)))
        self.end_headers()
        self.wfile.write(body[:100_000] if step == "break" else body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.content, server.script, server.ranges = CONTENT, [], []
    server.url = f"http://127.0.0.1:{server.server_address[1]}/some/file.bin"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def fetch(server, target, **options):
    return download(server.url, target, **{"checksum": MD5, "backoff": 0.001, "timeout": 5, **options})


def part_of(target):
    return target.with_name(target.name + ".part")


@pytest.mark.parametrize("checksum", [MD5, SHA256, None])
def test_file_arrives_whole(server, tmp_path, checksum):
    told = []
    path = fetch(server, tmp_path / "file", checksum=checksum, progress=lambda *step: told.append(step))
    assert path.read_bytes() == CONTENT
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert told[-1] == ("file", len(CONTENT), len(CONTENT))
    assert [step[1] for step in told] == sorted(step[1] for step in told)


def test_file_that_is_there_and_right_is_not_fetched(server, tmp_path):
    (tmp_path / "file").write_bytes(CONTENT)
    fetch(server, tmp_path / "file")
    assert server.ranges == []


def test_file_that_is_there_and_wrong_is_replaced_only_when_asked(server, tmp_path):
    (tmp_path / "file").write_bytes(b"something else")
    with pytest.raises(DownloadError, match=f"official file has {MD5.digest}"):
        fetch(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"something else"
    fetch(server, tmp_path / "file", replace=True)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_broken_connections_are_resumed_where_they_broke(server, tmp_path):
    server.script = ["break", "break"]
    fetch(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=100000-", "bytes=200000-"]


def test_progress_resets_the_patience(server, tmp_path):
    server.script = ["break", 503, "break", 503]
    fetch(server, tmp_path / "file", retries=2)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_later_call_goes_on_with_the_part(server, tmp_path):
    part_of(tmp_path / "file").write_bytes(CONTENT[:1234])
    fetch(server, tmp_path / "file")
    assert server.ranges == ["bytes=1234-"]
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_server_without_ranges_sends_everything_again(server, tmp_path):
    server.script = ["break", "no ranges"]
    fetch(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_server_that_sends_another_range_is_asked_anew(server, tmp_path):
    server.script = ["break", "wrong range"]
    fetch(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=100000-", None]


def test_unknown_length_is_no_obstacle(server, tmp_path):
    server.script = ["no length"]
    told = []
    fetch(server, tmp_path / "file", progress=lambda *step: told.append(step))
    assert told[-1] == ("file", len(CONTENT), None)


@pytest.mark.parametrize("extra", [0, 500])
def test_part_that_is_complete_or_too_long(server, tmp_path, extra):
    part_of(tmp_path / "file").write_bytes(CONTENT + bytes(extra))
    fetch(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert len(server.ranges) == (2 if extra else 1)


def test_part_of_another_file_costs_one_more_download(server, tmp_path):
    part_of(tmp_path / "file").write_bytes(bytes(1000))
    fetch(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.ranges == ["bytes=1000-", None]


def test_wrong_checksum_keeps_nothing_and_says_both(server, tmp_path):
    server.content = CONTENT[:-1] + b"!"
    found = hashlib.md5(server.content).hexdigest()
    with pytest.raises(DownloadError, match=rf"{found}.*{MD5.digest}"):
        fetch(server, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [404, 403, 410])
def test_final_answer_is_not_asked_again(server, tmp_path, code):
    server.script = [code] * 10
    with pytest.raises(DownloadError, match=rf"answered {code}.*copy it to .*file"):
        fetch(server, tmp_path / "file")
    assert len(server.ranges) == 1


def test_busy_server_is_asked_again(server, tmp_path):
    server.script = [503, 503, 429]
    fetch(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_patience_has_an_end(server, tmp_path):
    server.script = [503] * 10
    with pytest.raises(DownloadError, match=r"503.*\(4 attempts\)"):
        fetch(server, tmp_path / "file", retries=3)
    assert len(server.ranges) == 4


def test_no_network_says_what_to_do_by_hand(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/file.bin"
        with pytest.raises(DownloadError) as raised:
            download(url, tmp_path / "file", checksum=MD5, retries=1, backoff=0.001)
    for part in ("no connection", "another machine", MD5.digest, str(tmp_path / "file"), url):
        assert part in str(raised.value)


def test_what_has_arrived_is_kept_when_the_network_fails(server, tmp_path):
    server.script = ["break", *[500] * 5]
    with pytest.raises(DownloadError, match="What has arrived is kept"):
        fetch(server, tmp_path / "file", retries=1)
    assert part_of(tmp_path / "file").read_bytes() == CONTENT[:100_000]
    server.script = []
    fetch(server, tmp_path / "file")
    assert server.ranges[-1] == "bytes=100000-"


def test_full_disk_is_noticed_before_it_is_full(server, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 1000))
    with pytest.raises(DownloadError, match=r"needs 300,000 more bytes.*1,000 free"):
        fetch(server, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_size_that_no_disk_has_is_refused(server, tmp_path):
    server.script = ["huge"]
    with pytest.raises(DownloadError, match="Free some space"):
        fetch(server, tmp_path / "file")


def test_disk_error_while_writing_is_told(server, tmp_path):
    part_of(tmp_path / "file").mkdir()
    with pytest.raises(DownloadError, match=r"Cannot write .*\.part"):
        fetch(server, tmp_path / "file", replace=True)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/x", "cifar.tar.gz", ""])
def test_other_addresses_are_refused(tmp_path, url):
    with pytest.raises(InputError, match="http"):
        download(url, tmp_path / "file")


def test_two_downloads_of_one_file_do_not_mix(server, tmp_path):
    threads = [threading.Thread(target=fetch, args=(server, tmp_path / "file")) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert len(server.ranges) == 1
