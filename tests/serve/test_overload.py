"""Clients that are slow, idle, gone or greedy do not keep others waiting."""

import asyncio
import concurrent.futures
import resource
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import httpx
import pytest
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.requests import Request

from acil.growing import ModelFile
from acil.serve import server
from acil.serve.guard import TokenCheck, client_of
from acil.serve.service import Question
from support.serving import TOKEN, Client, client, encoded, images_of, wait_until, wired

#: Of a request that is not held up; without what is tested here it would take a minute or never end.
SECONDS = 20


@contextmanager
def lines_of(served, number):
    """Open so many connections to a server."""
    address = (served.base_url.host, served.base_url.port)
    with ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(address, SECONDS)) for _ in range(number)]


def head(length, path="/predict"):
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n"
        "Content-Type: multipart/form-data; boundary=x\r\n\r\n"
        '--x\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'
    ).encode()


def answers(served):
    """Ask what an honest client asks, over new connections."""
    with Client(base_url=served.base_url, timeout=SECONDS) as other:
        assert other.get("/health").json()["status"] == "ok"
        assert other.get("/metrics").status_code == 200
        return other.predict(images_of("red", 1)).status_code


def closed(line):
    """Whether the server closes a connection."""
    try:
        return line.recv(1000) == b""
    except ConnectionResetError:
        return True


@pytest.fixture
def gate(monkeypatch):
    """Holds up all decoding until it is set; it counts what is decoded."""
    made, real = threading.Event(), Question.read
    made.begun = []

    def decoded(*given):
        made.begun.append(given)
        made.wait(SECONDS)
        return real(*given)

    monkeypatch.setattr(Question, "read", decoded)
    yield made
    made.set()


def test_slow_uploads_hold_up_nobody(taught):
    with lines_of(taught, 100) as lines:
        for line in lines:
            line.sendall(head(10_000) + b"slow")
        assert answers(taught) == 200


def test_slow_upload_is_cut_off(settings):
    with client(settings(read_seconds=0.3)) as served:
        served.teach("red", images_of("red", 2))
        with lines_of(served, 1) as (line,):
            line.sendall(head(1000))
            assert b" 408 " in line.recv(1000).splitlines()[0]


def test_idle_connections_make_room(settings, monkeypatch):
    monkeypatch.setattr(server, "_MAX_CONNECTIONS", 40)
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.5)
    with client(settings(read_seconds=0.5)) as served:
        served.teach("red", images_of("red", 2))
        with lines_of(served, 100) as lines:
            assert answers(served) == 200
            assert closed(lines[0])
        # Uploads that do not come to an end too.
        with lines_of(served, 100) as lines:
            for line in lines:
                line.sendall(head(10_000))
            assert answers(served) == 200


def test_thousands_of_idle_connections_keep_nobody_out(taught):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Both ends of a connection are in this process.
    number = min(4000, hard // 2 - 500)
    with lines_of(taught, number) as lines:
        assert answers(taught) == 200
        lines[-1].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in lines[-1].recv(1000)


def test_bodies_of_tiny_chunks_keep_nobody_waiting(taught):
    """Twenty answers in the time in which a server that is held up gives one or two."""
    start = head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    start, _, part = start.partition(b"\r\n\r\n")
    first = start + b"\r\n\r\n%x\r\n%s\r\n" % (len(part), part)
    chunks, end = b"1\r\nx\r\n" * 10_000, threading.Event()

    def pour(line):
        with suppress(OSError):
            line.sendall(first)
            while not end.is_set():
                line.sendall(chunks)

    with lines_of(taught, 4) as lines, concurrent.futures.ThreadPoolExecutor(4) as pool:
        pouring = [pool.submit(pour, line) for line in lines]
        try:
            time.sleep(0.5)
            limit = time.monotonic() + SECONDS
            for _ in range(20):
                assert answers(taught) == 200
                assert time.monotonic() < limit
        finally:
            end.set()
            for line in lines:
                line.shutdown(socket.SHUT_RDWR)
        for one in pouring:
            one.result()


def poured(line):
    """Ask for a file of the page, in 50 MB of requests, and read no answer."""
    for _ in range(1000):
        line.sendall(b"GET /static/page.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)


def test_requests_are_not_read_ahead_of_their_answers(taught):
    with lines_of(taught, 1) as (line,):
        line.settimeout(3)
        # What the system itself holds is a few MB.
        with pytest.raises(TimeoutError):
            poured(line)
        assert answers(taught) == 200


def test_who_reads_no_answer_is_cut_off(settings, monkeypatch):
    monkeypatch.setattr(server, "READ_SECONDS", 1)
    with client(settings()) as served, lines_of(served, 1) as (line,):
        with pytest.raises(ConnectionError):
            poured(line)
        assert served.get("/health").status_code == 200


@pytest.mark.parametrize("begun", [b"", b"GET /health HTTP/1.1\r\nHost: local"])
@pytest.mark.parametrize("after", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_head_of_a_request_must_arrive_in_time(settings, monkeypatch, begun, after):
    """On a new connection and after a request."""
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.5)
    with client(settings()) as served, lines_of(served, 1) as (line,):
        if after:
            line.sendall(after)
            received = b""
            while b"}" not in received:
                received += line.recv(5000)
        line.sendall(begun)
        assert closed(line)


def test_busy_connection_is_not_idle(settings, monkeypatch):
    monkeypatch.setattr(server, "HEAD_SECONDS", 1.5)
    with client(settings()) as served:
        address = None
        for _ in range(12):
            with served.stream("GET", "/health") as answer:
                stream = answer.extensions["network_stream"]
                address = address or stream.get_extra_info("client_addr")
                assert stream.get_extra_info("client_addr") == address
                answer.read()
            time.sleep(0.3)


def test_rest_of_a_refused_body_is_not_read_for_ever(taught):
    with lines_of(taught, 1) as (line,):
        line.sendall(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
        assert b"404" in line.recv(5000)

        def drip():
            for _ in range(10 * SECONDS):
                line.sendall(b"x")
                time.sleep(0.1)

        with pytest.raises(OSError):  # noqa: PT011 - broken pipe or reset
            drip()


def test_nothing_is_decoded_for_a_client_that_is_gone(taught, gate):
    with lines_of(taught, 1) as (line,):
        line.sendall(wired(images_of("red", 30)))
        wait_until(lambda: gate.begun)
    waiting = taught.service._line._requests
    wait_until(lambda: all(request.future.cancelled() for request in list(waiting)))
    gate.set()
    assert answers(taught) == 200
    assert len(gate.begun) < 15


def test_large_pictures_whose_sender_hangs_up_hold_up_nobody(settings):
    large = encoded(Image.new("L", (3000, 3000)))
    with client(settings(max_pixels=10_000_000)) as served:
        served.teach("red", images_of("red", 2))
        with Client(base_url=served.base_url, timeout=httpx.Timeout(SECONDS, read=0.05)) as other:
            for _ in range(3):
                with pytest.raises(httpx.TimeoutException):
                    other.predict([large] * 8)
        assert answers(served) == 200


def test_pixels_of_a_request_are_limited(settings):
    with client(settings(max_pixels=200)) as served:
        assert served.teach("red", images_of("red", 8)).status_code == 200
        for answer in (served.predict(images_of("red", 12)), served.teach("red", images_of("red", 12))):
            assert answer.status_code == 413
            assert "pixels in all" in answer.json()["detail"]


def test_too_much_of_a_client_is_refused_for_a_while(settings, gate):
    """The line is bounded, and what only looks at the server passes it."""
    with client(settings(max_bytes=40_000, max_images=8, max_pixels=1_000_000)) as served:
        served.teach("red", images_of("red", 2))
        images = images_of("red", 8)

        def predict(_):
            with Client(base_url=served.base_url, timeout=3 * SECONDS) as other:
                return other.predict(images)

        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            asked = pool.map(predict, range(12))
            wait_until(lambda: 'status="429"' in served.get("/metrics").text)
            assert served.get("/health").status_code == 200
            assert served.get("/").status_code == 200
            gate.set()
            found = list(asked)
    assert {answer.status_code for answer in found} == {200, 429}
    for answer in found:
        if answer.status_code == 429:
            assert int(answer.headers["retry-after"]) > 0
            assert "later" in answer.json()["detail"]


def test_when_memory_is_full_the_slowest_upload_is_given_up(settings):
    with client(settings(max_bytes=100_000)) as served:
        served.teach("red", images_of("red", 2))
        with lines_of(served, 5) as lines:
            for line in lines:
                line.sendall(head(99_000) + bytes(90_000))
                time.sleep(0.05)
            assert b" 503 " in lines[0].recv(1000).splitlines()[0]
            assert answers(served) == 200
            lines[-1].settimeout(0.2)
            with pytest.raises(TimeoutError):
                lines[-1].recv(1000)


def test_changes_wait_in_a_line_of_their_own_that_ends(settings, monkeypatch):
    gate = threading.Event()
    with client(settings()) as served:
        served.teach("red", images_of("red", 2))
        reader = served.service.store.reader
        prepare = reader.prepare
        monkeypatch.setattr(reader, "prepare", lambda *given: (gate.wait(SECONDS), prepare(*given))[1])

        def teach(seed):
            with Client(base_url=served.base_url, timeout=3 * SECONDS) as other:
                return other.teach("blue", images_of("blue", 1, seed)).status_code

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            asked = pool.map(teach, range(8))
            refused = 'acil_requests_total{method="POST",path="/classes/{name}",status="503"} 4.0'
            wait_until(lambda: refused in served.get("/metrics").text)
            assert served.predict(images_of("red", 1)).status_code == 200
            gate.set()
            found = sorted(asked)
    assert found == [200] * 4 + [503] * 4
    assert served.service.store.published.snapshot.totals == {"blue": 4, "red": 2}


def test_watcher_of_the_file_survives_whatever_happens_and_health_tells(taught, monkeypatch, caplog):
    store, real = taught.service.store, ModelFile.read

    def broken(file):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(ModelFile, "read", broken)
    content = store.path.read_bytes()
    store.path.write_bytes(content)
    wait_until(lambda: taught.get("/health").json()["status"] == "degraded")
    found = taught.get("/health").json()
    assert found["ready"]
    assert "cannot be watched" in found["fault"]
    assert str(store.path) not in found["fault"]
    assert taught.predict(images_of("red", 1)).status_code == 200
    wait_until(lambda: "RuntimeError: out of luck" in caplog.text)
    monkeypatch.setattr(ModelFile, "read", real)
    wait_until(lambda: taught.get("/health").json()["status"] == "ok")
    assert caplog.text.count("out of luck") == 1
    store.path.unlink()
    wait_until(lambda: "gone" in (taught.get("/health").json()["fault"] or ""))


def test_wait_after_wrong_tokens_grows_and_ends_with_the_right_one():
    now = [0.0]
    check = TokenCheck(TOKEN, lambda: now[0])

    def asked(token, address="192.0.2.1"):
        headers = [(b"authorization", f"Bearer {token}".encode())]
        scope = {"type": "http", "headers": headers, "client": (address, 1)}
        try:
            asyncio.run(check(Request(scope)))
        except HTTPException as error:
            return error.status_code, int((error.headers or {}).get("Retry-After", 0))
        return 200, 0

    assert [asked("wrong") for _ in range(5)] == [(401, 0)] * 5
    waits = []
    for _ in range(10):
        status, seconds = asked(TOKEN)
        assert status == 429
        waits.append(seconds)
        now[0] += seconds
        assert asked("wrong")[0] == 401
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (2, 65)
    # Others are not concerned.
    assert asked(TOKEN, "192.0.2.2") == (200, 0)
    now[0] += 100
    assert asked(TOKEN) == (200, 0)
    assert [asked("wrong") for _ in range(5)] == [(401, 0)] * 5


def test_clients_are_told_apart_by_what_one_user_has():
    def named(address):
        return client_of({"client": (address, 1234)})

    assert named("192.0.2.1") != named("192.0.2.2")
    assert named("2001:db8::1") == named("2001:db8::ffff:1")
    assert named("2001:db8::1") != named("2001:db8:0:1::1")
    # A server that listens on :: sees IPv4 so.
    assert named("::ffff:192.0.2.1") == named("192.0.2.1") != named("::ffff:192.0.2.2")
    assert client_of({}) == client_of({"client": None})


@pytest.mark.parametrize(
    ("host", "hosts", "accepted", "refused"),
    [
        ("127.0.0.1", (), ["localhost", "127.0.0.1:8000"], ["192.0.2.1", "evil.example"]),
        ("0.0.0.0", (), ["localhost", "192.0.2.1:80", "[2001:db8::1]:80"], ["evil.example", ""]),
        ("0.0.0.0", ("models.example",), ["models.example", "192.0.2.1"], ["evil.example"]),
        ("192.0.2.1", (), ["192.0.2.1:8000"], ["localhost", "192.0.2.2", "evil.example"]),
    ],
)
def test_only_expected_names_are_answered(settings, host, hosts, accepted, refused):
    """Also on all addresses of the machine: a name of another site could point here."""
    with client(settings(host=host, hosts=hosts, token=TOKEN)) as served:
        for name in accepted:
            assert served.get("/health", headers={"Host": name}).status_code == 200, name
        for name in refused:
            assert served.get("/health", headers={"Host": name}).status_code == 421, name


@pytest.mark.parametrize("hosts", [(), ("models.example",)])
def test_guesses_of_the_token_are_few_for_each_client(settings, hosts):
    """A proxy names the client, but only one that is announced: anybody could claim to be another."""
    with client(settings(token=TOKEN, hosts=hosts)) as served:
        found = [
            served.teach(
                "red",
                images_of("red", 1),
                headers={"Authorization": f"Bearer {i}", "X-Forwarded-For": f"192.0.2.{i}"},
            )
            for i in range(20)
        ]
        assert [answer.status_code for answer in found[:5]] == [401] * 5
        late = [answer for answer in found if answer.status_code == 429]
        assert len(late) == 0 if hosts else len(late) >= 10
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in late)
        # Looking at the server needs no token.
        assert served.get("/model").status_code == 200


def test_a_server_takes_only_as_many_connections_as_it_may_open_files(settings, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (100, 200))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: None)
    assert server.connection_limit() == 100
