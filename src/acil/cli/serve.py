"""`acil serve`: the model over HTTP, with a page that teaches it."""

from __future__ import annotations

import dataclasses
import logging
import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer

from acil.cli.gate import MaxDrop, require_gate
from acil.cli.shared import Backbone, Undo, plain, shown_log, tell
from acil.errors import MissingExtraError
from acil.extras import install


def serve(
    model: Annotated[Path, typer.Argument(help="Model file, made if it is not there.", metavar="MODEL")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the token that teaching and forgetting need (or set ACIL_TOKEN)."),
    ] = None,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Let everybody on this machine teach and forget.")
    ] = False,
    held_out: Annotated[
        Path | None,
        typer.Option(
            help="Folder with a folder for each class, or a table of texts, to measure accuracy before "
            "and after changes."
        ),
    ] = None,
    gate: Annotated[
        Path | None,
        typer.Option(
            help="Like --held-out, and refuse changes after which the model would do worse on these "
            "samples of the classes that it knows.",
            metavar="HELD_OUT",
        ),
    ] = None,
    max_drop: MaxDrop = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Another name by which this server is reached.")
    ] = None,
    max_upload_mb: Annotated[int, typer.Option(min=1, help="Size of a request, in MiB.")] = 64,
    max_images: Annotated[int, typer.Option(min=1, help="Images in a request.")] = 64,
    max_texts: Annotated[int, typer.Option(min=1, help="Texts in a request.")] = 256,
    max_characters: Annotated[int, typer.Option(min=1, help="Characters of a text.")] = 20_000,
    max_megapixels: Annotated[int, typer.Option(min=1, help="Size of an image, in megapixels.")] = 50,
    texts: Annotated[
        bool, typer.Option("--texts", help="A model that is not there yet is one of texts.")
    ] = False,
    backbone: Backbone = None,
    track: Annotated[
        bool,
        typer.Option(
            "--track/--no-track",
            help="Keep salted hashes of the images in a new model, and leave out those learnt before; "
            "of texts, a digest of each request of ten or more. Whoever has the file and an image, or "
            "all texts of a request, can then tell whether they were learnt.",
        ),
    ] = True,
    undo: Undo = True,
) -> None:
    """Serve a model over HTTP and on a page.

    Listens on this machine only, unless --host says otherwise. Teaching and forgetting need a token. By
    default a new one is made at each start and printed as part of the address; to be reached from other
    machines, give your own. Each change is saved to the model file before it is answered. Ctrl-C stops.
    """
    try:
        from acil.serve.server import serve as run
    except ImportError as error:
        raise MissingExtraError(
            f"Serving needs the package {error.name!r}, which is not installed. Install it with: "
            f"{install('serve')}"
        ) from error
    from acil.growing.gate import MAX_DROP
    from acil.serve.settings import Settings, read_token

    require_gate(gate, max_drop)
    if gate is not None:
        if held_out is not None:
            raise typer.BadParameter(
                "--gate measures on its own folder: give one of both.", param_hint="--held-out"
            )
        held_out, max_drop = gate, MAX_DROP if max_drop is None else max_drop
    settings = Settings(
        model,
        backbone,
        host,
        port,
        None if no_token else read_token(token_file),
        held_out,
        hosts=tuple(allow_host or ()),
        max_bytes=max_upload_mb * 2**20,
        max_images=max_images,
        max_texts=max_texts,
        max_characters=max_characters,
        max_pixels=max_megapixels * 1_000_000,
        max_drop=max_drop,
        texts=texts,
        track=track,
        undo=undo,
    )
    made = "" if no_token or settings.token is not None else secrets.token_urlsafe(24)
    if made:
        settings = dataclasses.replace(settings, token=made)

    def ready(address: str) -> None:
        # Browsers do not send what follows '#', so it is in no log.
        typer.echo(f"serving {plain(model)} at {address}{'#token=' * bool(made)}{made}")
        if no_token:
            tell("without a token: everybody on this machine can teach and forget")
        others = " and any IP address" if settings.every_address else ""
        tell(f"answers to {', '.join(settings.names)}{others}")
        sys.stdout.flush()

    levels = {"acil": logging.INFO, "_granian": logging.ERROR}
    with shown_log("%(asctime)s %(levelname)s %(message)s", levels):
        run(settings, ready)
    tell("stopped")
