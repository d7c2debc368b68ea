"""The HTTP interface: routes, what they answer, limits on what comes in, errors as answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mimetypes
import reprlib
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import jinja2
from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import ClientDisconnect

from acil import __version__
from acil.errors import GateError, InputError, ModelFileError, NotFittedError, UnsupportedError
from acil.serve.guard import Guard, TokenCheck, client_of
from acil.serve.kinds import Kind
from acil.serve.line import RETRY_SECONDS
from acil.serve.metrics import CONTENT_TYPE
from acil.serve.service import Action, Service
from acil.serve.uploads import Inbox, RefusedError, TooLargeError, check_name

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
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
#: Fields that answers of a model of images have and those of texts do not, and the other way round.
_FIELDS = {
    "images": ("images", "image", "pixels"),
    "texts": ("texts", "characters", "tokens"),
}
_NOTHING = "There is nothing at this address; /docs has all addresses."


class Likely(BaseModel):
    """One class and its probability."""

    label: str
    probability: float


class Counted(BaseModel):
    """A number of samples, under the name of what they are; an answer has one of both."""

    images: int = 0
    texts: int = 0


class Predicted(BaseModel):
    """What the model says of one sample, or why it cannot say anything."""

    image: str = Field("", description="Name of the file.")
    label: str = Field(description='The likeliest class, or "unknown"; "" if there is an error.')
    unknown: bool = Field(description="Whether it is unlike everything learnt.")
    novelty: float | None = Field(
        description="Above 1 for 5 % of samples of the classes learnt, and for others."
    )
    top: list[Likely] = Field(description="The likeliest classes, best first.")
    error: str | None = Field(description="Why it cannot be used, if so.")


class Predictions(BaseModel):
    """What the model says of the samples of one request, in their order."""

    revision: str = Field(description="The state of the model that all these answers come from.")
    predictions: list[Predicted]


class Suggested(Predicted):
    """A sample whose class would teach the model, and what it says of it."""

    place: int = Field(description="Which one of the request, from 0.")
    closeness: float = Field(
        description="How close the second class comes to the first, from 0 to 1; the closest come "
        "first, of equals the most novel."
    )


class Accuracy(Counted):
    """Accuracy on the held-out samples, in percent, over the classes that the model knows."""

    accuracy: float | None
    per_class: dict[str, float]


class Kept(Counted):
    """What became of the classes known before and after a change."""

    accuracy_before: float | None
    accuracy_after: float | None
    lost: int = Field(description="Samples that were right before and are not now.")


class Comparison(BaseModel):
    """Accuracy on the held-out samples before and after a change."""

    before: Accuracy
    after: Accuracy
    kept: Kept


class Entry(Counted):
    """One change of the model."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    action: Action
    class_: str = Field(alias="class")
    to: str | None = Field(None, description="What a class that was renamed or merged is called then.")
    revision: str
    held_out: Comparison | None


class Refused(BaseModel):
    """A sample of a request that cannot be used."""

    place: int = Field(description="Which one, from 0.")
    image: str = Field("", description="Name of the file.")
    error: str


class Suggestions(BaseModel):
    """The samples of one request that are best taught next, the best first."""

    revision: str = Field(description="The state of the model that ordered them.")
    suggestions: list[Suggested]
    known: int = Field(description="Samples left out: taught before, or the same as others here.")
    refused: list[Refused] = Field(description="Samples left out, because they cannot be used.")


class Changed(Entry):
    """A change that has just been made and saved."""

    totals: dict[str, int] = Field(description="Samples of each class in the model now.")
    repeated: int = Field(description="Samples left out, because they were learnt before.")
    misplaced: int = Field(
        description="Those of them that were learnt as another class: forget them there first."
    )
    duplicates: int = Field(description="Texts that come more than once; each time counts.")
    refused: list[Refused] = Field(description="Samples left out, because they cannot be used.")
    seconds: float


class Class(Counted):
    """One class that the model knows."""

    name: str


class Limits(Counted):
    """What a request may have: bytes and samples in all, and pixels or characters of one."""

    bytes: int
    pixels: int = 0
    characters: int = 0
    tokens: int = Field(0, description="Parts of words that the network reads of a text.")


class Model(Counted):
    """The model that is served."""

    name: str
    kind: Literal["images", "texts"]
    revision: str | None
    classes: list[Class]
    network: str
    can_learn: bool
    tells_unknown: bool = Field(description="Whether it can say that a sample is unknown.")
    protected: bool = Field(description="Whether teaching and forgetting need a token.")
    max_drop: float | None = Field(
        description="Points of accuracy on the held-out samples that a change may lose: one that would "
        "lose more is refused."
    )
    undo_left: int = Field(description="How many of the last changes can be taken back.")
    limits: Limits
    held_out: Accuracy | None
    history: list[Entry] = Field(description="The last changes since the server started.")


class Health(BaseModel):
    """A server that is up, whether it can predict, and what is wrong with its model file."""

    status: Literal["ok", "degraded"]
    ready: bool
    fault: str | None = Field(description="Why changes of the model file are not seen, if so.")


class Fall(BaseModel):
    """Held-out samples, and accuracy on them before a change and as it would be after it."""

    samples: int
    before: float
    after: float


class Worse(Fall):
    """Why a change was refused: accuracy on classes known before and after, of all and of each."""

    per_class: dict[str, Fall]


class Refusal(BaseModel):
    """Why a request was refused; nothing was changed."""

    detail: str
    comparison: Worse | None = Field(None, description="What would have been worse, if that is why.")
    refused: list[Refused] | None = Field(
        None, description="Samples that cannot be used, if that is the reason."
    )


_STATUS: list[tuple[type[Exception], int, str | None]] = [
    (TooLargeError, 413, None),
    (NotFittedError, 409, None),
    (UnsupportedError, 409, None),
    (ModelFileError, 503, None),
    (InputError, 422, None),
    (TimeoutError, 408, "The request did not arrive in time. Send it again."),
    (ClientDisconnect, 400, "The client has gone."),
]


def create_app(service: Service) -> FastAPI:
    """Return the application that serves a model; when it ends, it closes the service."""
    refusals: dict[int | str, dict[str, Any]] = {
        code: {"model": Refusal} for code in (401, 403, 408, 409, 413, 415, 422, 429, 503)
    }
    app = FastAPI(
        title="acil",
        version=__version__,
        summary="A classifier that learns new classes while it is served.",
        lifespan=lambda _: _life(service),
        # FastAPI's own pages load scripts from other sites; we serve docs.html.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for fault, status, detail in _STATUS:
        app.add_exception_handler(fault, _answered(status, detail))
    app.add_exception_handler(RefusedError, _samples_refused)
    app.add_exception_handler(GateError, _change_refused)
    app.add_exception_handler(404, _answered(404, _NOTHING))
    app.add_exception_handler(405, _method_refused)
    app.add_exception_handler(RequestValidationError, _parameters_refused)
    kind = service.kind
    # A number of samples has one of two names in an answer.
    asked: dict[str, Any] = {"responses": refusals, "response_model_exclude_unset": True}
    content = {kind.content_type: {"schema": kind.schema}}
    brought = {**asked, "openapi_extra": {"requestBody": {"required": True, "content": content}}}
    app.state.inbox = inbox = Inbox(service.settings, service.max_bytes)
    protected = [Depends(TokenCheck(service.settings.token))]

    async def changed(request: Request, action: Literal["learn", "forget"], name: str) -> Changed:
        async with inbox.items(request, kind.receive) as items:
            done = await _unless_gone(request, service.change(action, name, items))
            return Changed.model_validate(done)

    @app.post("/predict", **brought)
    async def predict(
        request: Request,
        top: Annotated[int, Query(ge=1, le=100, description="Number of classes to name.")] = 3,
        unknown_above: Annotated[
            float | None,
            Query(
                ge=0,
                allow_inf_nan=False,
                description="Novelty beyond which a sample is unknown; 0 calls none so.",
            ),
        ] = None,
    ) -> Predictions:
        """Name the class of samples.

        Of one that cannot be used the answer has the error; if none can be used, it is a refusal.
        """
        limit = service.settings.unknown_above if unknown_above is None else unknown_above
        service.store.require()
        async with inbox.items(request, kind.receive) as items:
            work = service.predict(client_of(request.scope), items, top, limit or None)
            answer = await _unless_gone(request, work)
        return Predictions.model_validate(answer)

    @app.post("/classes/{name}", **brought, dependencies=protected)
    async def teach(request: Request, name: str) -> Changed:
        """Teach samples of a new class, or more of a known one; the model is saved before the answer.

        Those that cannot be used are skipped and reported; if none can be used, it is a refusal.
        """
        return await changed(request, "learn", name)

    @app.post("/classes/{name}/forget", **brought, dependencies=protected)
    async def forget(request: Request, name: str) -> Changed:
        """Forget samples of a class: the head becomes the one that never learnt them.

        Send the same that were taught. A class of which none is left disappears. If one cannot be used
        or was not taught, nothing is forgotten.
        """
        return await changed(request, "forget", name)

    @app.post("/classes/{name}/rename", **asked, dependencies=protected)
    async def rename(name: str, to: Annotated[str, Query(description="The new name.")]) -> Model:
        """Give a class another name, one that no other class has. Nothing else changes."""
        return Model.model_validate(await service.rename("rename", name, to))

    @app.post("/classes/{name}/merge", **asked, dependencies=protected)
    async def merge(name: str, to: Annotated[str, Query(description="The other class.")]) -> Model:
        """Make a class part of another: exact, as if all had been taught under the other name."""
        return Model.model_validate(await service.rename("merge", name, to))

    @app.post("/classes/{name:path}", include_in_schema=False)
    async def misnamed(name: str) -> None:
        # Only a name with a '/', or none, comes here.
        last = name.rpartition("/")[2]
        check_name(name.removesuffix(f"/{last}") if last in ("forget", "rename", "merge") else name)

    @app.post("/suggest", **brought, dependencies=protected)
    async def suggest(
        request: Request,
        number: Annotated[int, Query(ge=1, le=1000, description="Number of samples to name.")] = 10,
    ) -> Suggestions:
        """Say which samples without a class would teach most, had they one; the best come first.

        Those that were taught before are left out: this is for who may teach.
        """
        service.store.require()
        async with inbox.items(request, kind.receive) as items:
            work = service.suggest(client_of(request.scope), items, number)
            return Suggestions.model_validate(await _unless_gone(request, work))

    @app.post("/undo", **asked, dependencies=protected)
    async def undo() -> Model:
        """Take the last change of the model back, also one that another process has made."""
        return Model.model_validate(await service.undo())

    @app.get("/model", **asked)
    def model() -> Model:
        """Describe the model: classes, counts, limits, accuracy on the held-out samples."""
        return Model.model_validate(service.describe())

    @app.get("/health")
    async def health() -> Health:
        """Say that the server is up, whether it can predict, and whether it sees its model file."""
        store = service.store
        status: Literal["ok", "degraded"] = "ok" if store.fault is None else "degraded"
        return Health(status=status, ready=store.published is not None, fault=store.fault)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        """Return counters for Prometheus."""
        return PlainTextResponse(service.metrics.text(), media_type=CONTENT_TYPE)

    for address, file in PAGES.items():
        _add_page(app, address, STATIC / file, kind)
    _describe(app, kind.many)
    app.add_middleware(Guard, settings=service.settings, metrics=service.metrics)
    return app


def _describe(app: FastAPI, many: str) -> None:
    """Leave fields that answers of such a model never have out of the description of the interface."""
    others = {name for kind, names in _FIELDS.items() if kind != many for name in names}
    for schema in app.openapi()["components"]["schemas"].values():
        for name in others & schema.get("properties", {}).keys():
            del schema["properties"][name]


def _add_page(app: FastAPI, address: str, path: Path, kind: Kind) -> None:
    # From memory: opening a file for each request takes longer than all else.
    content, media_type = path.read_text(encoding="utf-8"), mimetypes.guess_type(path)[0]
    if path.suffix == ".html":
        pages = jinja2.Environment(
            autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        content = pages.from_string(content).render(one=kind.one, many=kind.many)

    async def page() -> Response:
        return Response(content, media_type=media_type)

    app.get(address, include_in_schema=False)(page)


@contextlib.asynccontextmanager
async def _life(service: Service) -> AsyncIterator[None]:
    async def watch() -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            await asyncio.to_thread(service.store.refresh)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        await asyncio.to_thread(service.close)


async def _unless_gone(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of work, or cancel it when the client hangs up."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        # A change that has begun goes on to its end in its thread.
        await asyncio.wait({working, watching})


async def _method_refused(request: Request, error: Any) -> JSONResponse:
    """Say which method an address takes."""
    detail = f"This address takes {error.headers['Allow']}, not {request.method}; /docs has all of them."
    return JSONResponse({"detail": detail}, 405, error.headers)


async def _parameters_refused(request: Request, error: Any) -> JSONResponse:
    """Answer wrong query parameters like all other refusals."""
    texts = [
        f"{fault['loc'][-1]} is {reprlib.repr(fault['input'])}. {fault['msg']}."
        for fault in error.errors()
    ]
    return JSONResponse({"detail": " ".join(texts)}, 422)


async def _samples_refused(request: Request, error: Any) -> JSONResponse:
    """Say which samples cannot be used."""
    status = 413 if error.too_large else 422
    return JSONResponse({"detail": str(error), "refused": error.refused}, status)


async def _change_refused(request: Request, error: Any) -> JSONResponse:
    """Say what would have been worse after a change; the message has a table for terminals."""
    detail = str(error).partition("\n")[0]
    return JSONResponse({"detail": detail, "comparison": error.comparison}, 409)


def _answered(status: int, detail: str | None) -> Any:
    headers = {"Retry-After": RETRY_SECONDS} if status == 503 else None

    async def answer(request: Request, error: Exception) -> JSONResponse:
        if status == 503:  # nothing that the client could mend
            logger.warning("%s", error)
        return JSONResponse({"detail": detail or str(error)}, status, headers)

    return answer
