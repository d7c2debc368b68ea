"""The HTTP interface: routes, what they answer, limits on what comes in, errors as answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import reprlib
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect

from acil import __version__
from acil.app.guard import Guard, TooMuchError
from acil.app.metrics import CONTENT_TYPE
from acil.app.service import Question, Service
from acil.app.uploads import TooLargeError
from acil.errors import InputError, ModelFileError, NotFittedError, UnsupportedError

logger = logging.getLogger(__name__)
STATIC = Path(__file__).parent / "static"
#: Files of the page, by the address under which each is found.
PAGES = {
    "/": "index.html",
    "/docs": "docs.html",
    "/static/page.css": "page.css",
    "/static/page.js": "page.js",
    "/static/docs.js": "docs.js",
    "/static/icon.svg": "icon.svg",
}
#: Seconds between two checks of the model file.
WATCH_SECONDS = 1.0
#: Requests to teach or forget that are received at a time; changes are made one by one.
_MAX_CHANGES = 8
_FIELD = "images"
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": [_FIELD],
                    "properties": {
                        _FIELD: {
                            "type": "array",
                            "items": {"type": "string", "format": "binary"},
                            "description": "Image files: JPEG, PNG, WEBP, GIF or BMP.",
                        }
                    },
                }
            }
        },
    }
}
_NOTHING = "There is nothing at this address; /docs has all addresses. A class name cannot have a '/'."


class Likely(BaseModel):
    """One class and its probability."""

    label: str
    probability: float


class Predicted(BaseModel):
    """What the model says of one image."""

    label: str = Field(description='The likeliest class, or "unknown".')
    unknown: bool = Field(description="Whether the image is unlike everything learnt.")
    novelty: float | None = Field(
        description="Above 1 for 5 % of images of the classes learnt, and for others."
    )
    top: list[Likely] = Field(description="The likeliest classes, best first.")


class Predictions(BaseModel):
    """What the model says of the images of one request, in their order."""

    revision: str = Field(description="The state of the model that all these answers come from.")
    predictions: list[Predicted]


class Accuracy(BaseModel):
    """Accuracy on the held-out folder, in percent, over the classes that the model knows."""

    accuracy: float | None
    images: int
    per_class: dict[str, float]


class Kept(BaseModel):
    """What became of the classes known before and after a change."""

    accuracy_before: float | None
    accuracy_after: float | None
    images: int
    lost: int = Field(description="Images that were right before and are not now.")


class Comparison(BaseModel):
    """Accuracy on the held-out folder before and after a change."""

    before: Accuracy
    after: Accuracy
    kept: Kept


class Entry(BaseModel):
    """One change of the model."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    action: Literal["learn", "forget"]
    class_: str = Field(alias="class")
    images: int
    revision: str
    held_out: Comparison | None


class Changed(Entry):
    """A change that has just been made and saved."""

    totals: dict[str, int] = Field(description="Images of each class in the model now.")
    seconds: float


class Class(BaseModel):
    """One class that the model knows."""

    name: str
    images: int


class Limits(BaseModel):
    """What a request may have: bytes and images in all, and pixels an image."""

    bytes: int
    images: int
    pixels: int


class Model(BaseModel):
    """The model that is served."""

    name: str
    revision: str | None
    classes: list[Class]
    images: int
    network: str
    can_learn: bool
    protected: bool = Field(description="Whether teaching and forgetting need a token.")
    limits: Limits
    held_out: Accuracy | None
    history: list[Entry] = Field(description="The last changes since the server started.")


class Health(BaseModel):
    """A server that is up, and whether it can predict."""

    status: Literal["ok"] = "ok"
    ready: bool


class Refusal(BaseModel):
    """Why a request was refused; nothing was changed."""

    detail: str


_STATUS: list[tuple[type[Exception], int, str | None]] = [
    (TooMuchError, 413, "The request is larger than this server takes. Send fewer or smaller images."),
    (TooLargeError, 413, None),
    (NotFittedError, 409, None),
    (UnsupportedError, 409, None),
    (ModelFileError, 503, None),
    (InputError, 422, None),
    (TimeoutError, 408, "The images did not arrive in time. Send them again."),
    (ClientDisconnect, 400, "The client has gone."),
]


def create_app(service: Service) -> FastAPI:
    """Return the application that serves a model.

    Parameters
    ----------
    service : Service
        Closed when the application ends.
    """
    refusals: dict[int | str, dict[str, Any]] = {
        code: {"model": Refusal} for code in (401, 403, 408, 409, 413, 415, 422, 503)
    }
    app = FastAPI(
        title="acil",
        version=__version__,
        summary="A classifier that learns new classes while it is served.",
        lifespan=lambda _: _life(service),
        # FastAPI's own pages load scripts from other sites; we serve docs.html.
        docs_url=None,
        redoc_url=None,
    )
    for kind, status, detail in _STATUS:
        app.add_exception_handler(kind, _answered(status, detail))
    app.add_exception_handler(404, _answered(404, _NOTHING))
    app.add_exception_handler(RequestValidationError, _parameters_refused)
    slots = asyncio.Semaphore(service.settings.max_requests)
    # Changes do not wait in line behind predictions.
    changes = asyncio.Semaphore(_MAX_CHANGES)
    protected = [Depends(_token_check(service.settings.token))]

    @app.post("/predict", responses=refusals, openapi_extra=_BODY)
    async def predict(
        request: Request,
        top: Annotated[int, Query(ge=1, le=100, description="Number of classes to name.")] = 3,
        unknown_above: Annotated[
            float | None,
            Query(
                ge=0,
                allow_inf_nan=False,
                description="Novelty beyond which an image is unknown; 0 calls none so.",
            ),
        ] = None,
    ) -> Predictions:
        """Name the class of images."""
        limit = service.settings.unknown_above if unknown_above is None else unknown_above
        service.store.require()
        async with slots:
            with service.expecting():
                async with _files(request, service) as files:
                    pixels = await service.read(files)
            answer = await service.predict(pixels, Question(top, limit or None))
        return Predictions.model_validate(
            {
                "revision": answer.revision,
                "predictions": [
                    {
                        "label": label,
                        "unknown": unknown,
                        "novelty": novelty,
                        "top": [{"label": name, "probability": share} for name, share in likeliest],
                    }
                    for label, unknown, likeliest, novelty in answer.predictions
                ],
            }
        )

    @app.post("/classes/{name}", responses=refusals, openapi_extra=_BODY, dependencies=protected)
    async def teach(request: Request, name: str) -> Changed:
        """Teach images of a new class, or more of a known one; the model is saved before the answer."""
        async with changes, _files(request, service) as files:
            return Changed.model_validate(await service.change("learn", name, files))

    @app.post("/classes/{name}/forget", responses=refusals, openapi_extra=_BODY, dependencies=protected)
    async def forget(request: Request, name: str) -> Changed:
        """Forget images of a class: the head becomes the one that never learnt them.

        Send the same files that were taught. A class of which none is left disappears.
        """
        async with changes, _files(request, service) as files:
            return Changed.model_validate(await service.change("forget", name, files))

    @app.get("/model")
    def model() -> Model:
        """Describe the model: classes, counts, limits, accuracy on the held-out folder."""
        return Model.model_validate(service.describe())

    @app.get("/health")
    async def health() -> Health:
        """Say that the server is up, and whether there is a model to predict with."""
        return Health(ready=service.store.published is not None)

    @app.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> PlainTextResponse:
        """Return counters for Prometheus."""
        return PlainTextResponse(service.metrics.text(), media_type=CONTENT_TYPE)

    for address, file in PAGES.items():
        _add_page(app, address, STATIC / file)
    app.add_middleware(Guard, settings=service.settings, metrics=service.metrics)
    return app


def _add_page(app: FastAPI, address: str, path: Path) -> None:
    async def page() -> FileResponse:
        return FileResponse(path)

    app.get(address, include_in_schema=False)(page)


@contextlib.asynccontextmanager
async def _life(service: Service) -> AsyncIterator[None]:
    async def watch() -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                await asyncio.to_thread(service.store.refresh)
            except InputError as error:
                logger.warning("%s", error)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        await asyncio.to_thread(service.close)


@contextlib.asynccontextmanager
async def _files(request: Request, service: Service) -> AsyncIterator[list[BinaryIO]]:
    """Receive the files of a request; large ones go to the disk until they are read."""
    settings = service.settings
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise HTTPException(415, f"Send images as multipart/form-data, in fields named '{_FIELD}'.")
    async with asyncio.timeout(settings.read_seconds):
        form = await request.form(max_files=settings.max_images, max_fields=1)
    try:
        fields = form.multi_items()
        if not fields:
            raise InputError(f"There are no images. Send at least one, in a field named '{_FIELD}'.")
        files: list[BinaryIO] = []
        for key, value in fields:
            if key != _FIELD or not isinstance(value, UploadFile):
                raise InputError(f"Send files in fields named '{_FIELD}', and nothing else.")
            files.append(value.file)
        yield files
    finally:
        await form.close()


def _token_check(token: str | None) -> Any:
    """Return a dependency that refuses requests without the token, before their body is read."""

    async def check(request: Request) -> None:
        if token is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # Constant time: it must not reveal how much of the token is right.
        same = secrets.compare_digest(given.strip().encode(), token.encode())
        if scheme.lower() != "bearer" or not same:
            raise HTTPException(
                401,
                "Teaching and forgetting need the token of this server. Send it in the header "
                "'Authorization: Bearer TOKEN'.",
                {"WWW-Authenticate": "Bearer"},
            )

    return check


async def _parameters_refused(request: Request, error: Exception) -> JSONResponse:
    """Answer wrong query parameters like all other refusals."""
    found = error.errors() if isinstance(error, RequestValidationError) else []
    texts = [f"{fault['loc'][-1]} is {reprlib.repr(fault['input'])}. {fault['msg']}." for fault in found]
    return JSONResponse({"detail": " ".join(texts)}, 422)


def _answered(status: int, detail: str | None) -> Any:
    async def answer(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": detail or str(error)}, status)

    return answer
