"""What the HTTP interface answers, as its documentation shows it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Likely(BaseModel):
    """One class and its probability."""

    label: str
    probability: float


class Predicted(BaseModel):
    """What the model says of one image."""

    label: str = Field(description='The likeliest class, or "unknown".')
    unknown: bool = Field(description="Whether the image is unlike everything learnt.")
    novelty: float | None = Field(description="About 1 for images like those learnt, more for others.")
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
