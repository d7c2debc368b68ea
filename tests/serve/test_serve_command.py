"""`acil serve` as a process: starts, stops, shares its file, survives being killed."""

import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

import httpx
import pytest
from typer.testing import CliRunner

from acil import ImageClassifier, TextClassifier
from acil.cli import app
from acil.core.files import describe
from acil.encoders.text import bert
from acil.growing import load_classifier
from acil.serve import server
from acil.serve.server import listen
from support.forks import finished
from support.serving import LOG, TOKEN, Client, images_of, started, wait_until
from support.texts import sentences


def test_serves_until_told_to_stop_and_shares_the_file(place, tmp_path):
    (tmp_path / "network.onnx").symlink_to(place / "network.onnx")
    options = ("m.acil", "--backbone", "onnx:network.onnx")
    with started(*options, cwd=tmp_path, ACIL_TOKEN=TOKEN) as (process, address):
        with Client(base_url=address, timeout=60) as served:
            right = {"Authorization": f"Bearer {TOKEN}"}
            assert served.teach("red", images_of("red", 3)).status_code == 401
            assert served.teach("red", images_of("red", 3), headers=right).status_code == 200
            # Another process learns into the same file; the server sees it, then adds to it.
            learning = ("learn", place / "held-out" / "blue", "--class", "blue", "--model", "m.acil")
            assert finished(*learning, cwd=tmp_path).returncode == 0
            wait_until(lambda: len(served.get("/model").json()["classes"]) == 2)
            report = served.teach("green", images_of("green", 3), headers=right).json()
            assert report["totals"] == {"blue": 4, "green": 3, "red": 3}
        process.send_signal(signal.SIGTERM)
    errors = (tmp_path / LOG).read_text()
    assert process.returncode == 0, errors
    assert "stopped" in errors
    assert re.search(r"INFO POST /classes/red 401 \d+ ms", errors)
    assert "learnt 3 images of 'red'" in errors
    assert "changed by another process: reloaded" in errors
    assert TOKEN not in errors
    assert describe(tmp_path / "m.acil")["counts"] == [4, 3, 3]


def test_request_that_has_begun_is_answered_before_the_end(place, tmp_path):
    options, answers = ("--backbone", f"onnx:{place / 'network.onnx'}", "--no-token"), []
    with started("m.acil", *options, cwd=tmp_path) as (process, address):

        def teach():
            with Client(base_url=address, timeout=60) as served:
                answers.append(served.teach("red", images_of("red", 60)).status_code)

        thread = threading.Thread(target=teach)
        thread.start()
        with httpx.Client(base_url=address, timeout=60) as served:
            # The request is counted when it ends, so wait for what it needs first: a connection.
            served.get("/health")
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        thread.join()
        process.wait(60)
    errors = (tmp_path / LOG).read_text()
    assert process.returncode == 0, errors
    assert answers == [200]
    assert describe(tmp_path / "m.acil")["n_samples"] == 60


@pytest.mark.parametrize("signals", [1, 2])
def test_stalled_uploads_do_not_hold_up_the_end(place, tmp_path, signals):
    """They have two seconds, or none at the second signal."""
    options = ("--backbone", f"onnx:{place / 'network.onnx'}", "--no-token")
    with started("m.acil", *options, cwd=tmp_path) as (process, address):
        target = httpx.URL(address)
        with socket.create_connection((target.host, target.port), 60) as line:
            line.sendall(
                b"POST /classes/red HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n"
                b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n"
            )
            # An answer to a later connection: the upload has begun.
            assert httpx.get(f"{address}/health").status_code == 200
            begun = time.monotonic()
            for number in range(signals):
                process.send_signal(signal.SIGTERM)
                time.sleep(0.3 * (number + 1 < signals))
            process.wait(60)
            assert time.monotonic() - begun < 15
            assert signals == 2 or b" 408 " in line.recv(1000).splitlines()[0]
    assert process.returncode == 0, (tmp_path / LOG).read_text()


def test_what_cannot_be_served_is_told(tmp_path):
    def fails(*arguments):
        result = CliRunner().invoke(app, ["serve", *map(str, arguments)])
        assert result.exit_code == 1, result.output
        return result.stderr

    (tmp_path / "damaged.acil").write_bytes(b"hello")
    assert "token" in fails(tmp_path / "m.acil", "--host", "0.0.0.0")
    assert "damaged.acil" in fails(tmp_path / "damaged.acil", "--port", 0)
    assert "no file" in fails(tmp_path / "m.acil", "--held-out", tmp_path / "missing", "--port", 0)
    assert "no backbone" in fails(tmp_path / "m.acil", "--backbone", "nothing", "--port", 0)
    with listen("127.0.0.1", 0) as taken:
        told = fails(tmp_path / "m.acil", "--port", taken.getsockname()[1])
        assert re.search(r"Cannot listen .* in use.*--port", told, re.DOTALL)


def test_missing_extra_is_named(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("acil.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "granian", None)
    result = CliRunner().invoke(app, ["serve", str(tmp_path / "m.acil")])
    assert result.exit_code == 1
    assert "pip install fastapi " in result.stderr


@pytest.fixture
def announced(tmp_path, monkeypatch):
    """Run the command without listening; return the settings and what it says."""
    found = []

    def serve(settings, ready):
        found.append(settings)
        ready("http://127.0.0.1:8000/")

    monkeypatch.setattr(server, "serve", serve)

    def run(*arguments, **environment):
        environment = {"ACIL_TOKEN": None, **environment}
        result = CliRunner().invoke(
            app, ["serve", str(tmp_path / "m.acil"), *arguments], env=environment
        )
        assert result.exit_code == 0, result.output
        return found.pop(), result

    return run


def test_token_is_made_at_start_and_is_part_of_the_address(announced):
    settings, result = announced()
    assert len(settings.token) >= 32
    assert f"http://127.0.0.1:8000/#token={settings.token}\n" in result.stdout
    assert announced()[0].token != settings.token


def test_own_token_is_not_shown_and_none_is_told(announced):
    settings, result = announced(ACIL_TOKEN=TOKEN)
    assert settings.token == TOKEN
    assert TOKEN not in result.output
    settings, result = announced("--no-token", ACIL_TOKEN=TOKEN)
    assert settings.token is None
    assert "everybody on this machine can teach" in result.stderr
    assert "#" not in result.stdout


def test_start_says_which_names_are_answered(announced):
    assert "answers to localhost, 127.0.0.1, [::1]\n" in announced()[1].stderr
    arguments = ("--host", "0.0.0.0", "--allow-host", "models.example")
    said = announced(*arguments, ACIL_TOKEN=TOKEN)[1].stderr
    assert "models.example and any IP address" in said


#: Imports everything once, then forks a server for each line of stdin: fifty starts in a short time.
FORKING = """
import os, sys
from pathlib import Path
from acil.serve.server import serve
from acil.serve.settings import Settings
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        settings = Settings(Path(sys.argv[1]), sys.argv[2], port=0)
        serve(settings, lambda address: print(os.getpid(), address, flush=True))
        os._exit(0)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (("--max-drop", "1"), 2, "give both"),
        (("--gate", "held-out", "--held-out", "held-out"), 2, "one of both"),
        (("--gate", "nowhere"), 1, "There are no held-out samples at nowhere"),
        (("--gate", "held-out", "--max-drop", "101"), 2, "--max-drop"),
    ],
)
def test_options_of_the_gate_belong_together(place, tmp_path, monkeypatch, options, code, told):
    monkeypatch.chdir(place)
    result = CliRunner().invoke(app, ["serve", str(tmp_path / "m.acil"), *options])
    assert result.exit_code == code
    assert told in result.output or told in str(result.exception)


def test_a_served_model_refuses_what_makes_it_worse(place, tmp_path):
    options = ("--backbone", f"onnx:{place / 'network.onnx'}", "--no-token")
    gate = ("--gate", place / "held-out", "--max-drop", "1")
    with (
        started("m.acil", *options, *gate, cwd=tmp_path) as (_, address),
        Client(base_url=address, timeout=60) as served,
    ):
        for name in ("red", "blue", "green"):
            assert served.teach(name, images_of(name, 5)).status_code == 200
        assert served.get("/model").json()["max_drop"] == 1
        assert served.teach("grass", images_of("green", 3, seed=5)).status_code == 409
    assert describe(tmp_path / "m.acil")["counts"] == [5, 5, 5]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "moments"), [("images", 50), ("texts", 12)])
def test_kill_at_many_moments_leaves_the_old_or_the_new_model(place, tmp_path, kind, moments):
    """The file always loads; it holds what was answered, or also what was being taught."""
    path, chance, outcomes = tmp_path / "m.acil", random.Random(0), []
    network = f"onnx:{place / 'network.onnx'}"
    if kind == "texts":
        pytest.importorskip(bert.PACKAGE)
        network = bert.MINILM
        model, given = TextClassifier(expansion_size=64, track=False), sentences("card", 3)
    else:
        model, given = ImageClassifier(network, track=False), images_of("red", 3)
    model.learn(given, "first")
    model.save(path)
    starter = subprocess.Popen(
        [sys.executable, "-c", FORKING, path, network],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    teaching_seconds = None

    def teach(served):
        if kind == "images":
            return served.teach("blue", images_of("blue", 2))
        return served.post("/classes/travel", json={"texts": sentences("travel", 2)})

    try:
        for _ in range(moments):
            before = describe(path)["n_samples"]
            print("start", file=starter.stdin, flush=True)
            pid, address = starter.stdout.readline().split()
            answered = 0
            with Client(base_url=address, timeout=60) as served:
                begin = time.perf_counter()
                teach(served)
                answered += 1
                teaching_seconds = teaching_seconds or time.perf_counter() - begin
                killer = subprocess.Popen(
                    ["sh", "-c", f"sleep {chance.uniform(0, 3 * teaching_seconds):.4f}; kill -9 {pid}"]
                )
                with suppress(httpx.HTTPError):
                    while True:
                        assert teach(served).status_code == 200
                        answered += 1
            killer.wait(60)
            assert starter.stdout.readline() == "gone\n"
            found = load_classifier(path).snapshot.head.n_samples_ - before
            assert found in (2 * answered, 2 * answered + 2)
            outcomes.append(found - 2 * answered)
    finally:
        starter.stdin.close()
        starter.terminate()
        starter.wait(60)
        starter.stdout.close()
    assert len(outcomes) == moments
    # Both ends of the race were seen, or the moments were not random enough.
    assert 0 in outcomes
    # What the last one left behind is removed by the next save; it never piles up.
    left = {entry.name for entry in tmp_path.iterdir()} - {"m.acil", ".m.acil.undo"}
    assert len(left) <= 1
    load_classifier(path).save(path)
    assert {entry.name for entry in tmp_path.iterdir()} <= {"m.acil", ".m.acil.undo"}
