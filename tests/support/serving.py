"""A server in a thread, or as a process, and images to send to it."""

import io
import re
import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
from PIL import Image

from acil.serve.server import Server, listen
from acil.serve.service import Service
from acil.serve.settings import Settings
from acil.serve.store import Store
from support.forks import Command
from support.pictures import COLOURS, picture

TOKEN = "a-token-of-the-tests-1234"
LOG = "serve.err"
#: What the command prints when it listens, up to a token.
ADDRESS = re.compile(r"(http://[^\s#]+?)/?[\s#]")


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def images_of(name: str, number: int, seed: int = 0) -> list[bytes]:
    """Return images of a colour, of which every seed gives others."""
    generator = np.random.default_rng([seed, *name.encode()])
    colour = COLOURS.get(name) or generator.integers(20, 236, 3)
    return [encoded(picture(colour, generator)) for _ in range(number)]


def sent(images: list[bytes]) -> list[tuple[str, tuple[str, bytes, str]]]:
    """Return images as httpx uploads them."""
    return [("images", (f"{i}.png", image, "image/png")) for i, image in enumerate(images)]


def wired(images: list[bytes], path: str = "/predict") -> bytes:
    """Return a request with images as it goes over the wire."""
    made = httpx.Request("POST", f"http://localhost{path}", files=sent(images))
    body = made.read()
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in made.headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Client(httpx.Client):
    """A client with the three calls that tests make most."""

    def teach(self, name: str, images: list[bytes], **options) -> httpx.Response:
        return self.post(f"/classes/{name}", files=sent(images), **options)

    def forget(self, name: str, images: list[bytes], **options) -> httpx.Response:
        return self.post(f"/classes/{name}/forget", files=sent(images), **options)

    def predict(self, images: list[bytes], **options) -> httpx.Response:
        return self.post("/predict", files=sent(images), **options)


@contextmanager
def server(settings: Settings):
    """Serve in a thread; yield the service and the address."""
    listening = listen("127.0.0.1", 0)
    service = Service(settings)
    running = Server(service, listening)
    thread = threading.Thread(target=running.run)
    thread.start()
    try:
        yield service, f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        running.stop()
        thread.join(timeout=60)
        listening.close()
        assert not thread.is_alive()


@contextmanager
def client(settings: Settings):
    """Serve in a thread; yield a client, which has the service as an attribute."""
    with server(settings) as (service, address), Client(base_url=address, timeout=60) as made:
        made.service = service
        yield made


@contextmanager
def started(*arguments: object, cwd: Path, **environment: str):
    """Run `acil serve` as a process; yield it and its address when it listens, and stop it then."""
    process = Command(
        *("serve", *arguments, "--port", 0), cwd=cwd, said=cwd / "serve", environment=environment
    )
    try:
        wait_until(lambda: ADDRESS.search(said(process.stdout)) or process.returncode is not None, 120)
        found = ADDRESS.search(said(process.stdout))
        assert found, said(process.stderr)
        yield process, found[1]
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        process.kill()


def said(file: Path) -> str:
    """Return what a process has written into a file, which may not be there yet."""
    return file.read_text() if file.exists() else ""


def learn(store: Store, *given: object) -> None:
    """Have a served model learn samples, or images and their classes, without a request."""
    store.change(lambda file: file.learn(*given))


def wait_until(condition, seconds: float = 20.0) -> None:
    """Wait for something that happens in the background."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
