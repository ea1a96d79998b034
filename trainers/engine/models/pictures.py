"""Images among tokens: what a row of ids holds in their place, and what a model is given for it.

An image stands in a row of ids by its *name*, a negative number made of its bytes and of how they
are prepared, as often as it has tokens. So whatever finds rows by ids (remembered prefixes, equal
prompts, random streams) knows nothing of images. Whoever has a row in work holds its pictures;
names are looked up where a pass runs.

Shapes: B rows, T tokens a row, P patches of an image, D numbers of a patch.
"""

import io
import json
import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from PIL import Image
from tinker import types
from torch import Tensor

from evert.trainers.engine.models.base_models import (
    base_of,
    from_pretrained,
    load_config,
    resolve_model,
)

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")  # That are shown images
_KEPT_BYTES = 2**28  # Of the pictures read last: sampled from, turn by turn, then trained on


@dataclass(frozen=True, eq=False)
class Picture:
    """An image, ready for a model."""

    name: int  # Below 0; the same for the same bytes
    patches: Tensor  # [P, D] float32
    grid: tuple[int, int, int]  # Patches in time (1), from top to bottom, and from left to right
    merge: int  # Patches a side that become one token

    @property
    def tokens(self) -> int:
        """How many tokens it takes."""
        return math.prod(self.grid) // self.merge**2


_named: WeakValueDictionary[int, Picture] = WeakValueDictionary()  # Those that are held
_lock = Lock()  # Held by a reader that looks a picture up, or enters one


@dataclass(frozen=True)
class Row:
    """What a prompt or a datum is read into; hold it while its ids are in work."""

    ids: list[int]  # Token ids, and names of pictures
    pictures: tuple[Picture, ...] = ()


class PictureReader:
    """Reads what is given to one base model."""

    def __init__(self, base_model: str) -> None:
        self._base_model = base_model
        self._last: OrderedDict[int, Picture] = OrderedDict()

    def read(self, prompt: types.ModelInput) -> Row:
        """The ids of a prompt, and its pictures. May be called by several threads.

        A ``ValueError`` says what this model does not take; its text goes on from "The prompt".
        """
        if is_text(prompt):
            return Row(prompt.to_ints())
        ids: list[int] = []
        pictures: list[Picture] = []
        for chunk in prompt.chunks:
            if isinstance(chunk, types.EncodedTextChunk):
                if min(chunk.tokens, default=0) < 0:
                    raise ValueError(
                        f"has token id {min(chunk.tokens)}; the model knows 0 and up. Write the "
                        "prompt with the model's own tokenizer."
                    )
                ids += chunk.tokens
            elif isinstance(chunk, types.ImageChunk):
                pictures.append(self._picture(chunk))
                ids += [pictures[-1].name] * pictures[-1].tokens
            else:
                raise ValueError(
                    f"has a chunk that is not text and no image, of type {chunk.type!r}; the "
                    "embedded engine takes an image as its bytes (ImageChunk), and no sound. Send "
                    "text and images alone."
                )
        return Row(ids, tuple(pictures))

    def _picture(self, chunk: types.ImageChunk) -> Picture:
        digest = blake2b(chunk.data, digest_size=8, key=self._preparation).digest()
        name = -1 - (int.from_bytes(digest) >> 1)
        with _lock:
            picture = self._last.pop(name, None) or _named.get(name)
        if picture is None:
            picture = self._prepared(name, chunk.data)
        with _lock:  # another thread may have read it, too: rows are to hold the one that is named
            picture = self._last[name] = _named.setdefault(name, picture)
            while sum(kept.patches.nbytes for kept in self._last.values()) > _KEPT_BYTES:
                self._last.popitem(last=False)
        if chunk.expected_tokens not in (None, picture.tokens):
            raise ValueError(
                f"has an image of {picture.tokens} tokens where {chunk.expected_tokens} were "
                f"expected. Count them with the image processor of {self._base_model}."
            )
        return picture

    def _prepared(self, name: int, data: bytes) -> Picture:
        try:
            with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
                found = self._processor(images=[image.convert("RGB")], return_tensors="pt")
        except Exception as error:  # Pillow's decoders raise what they like
            raise ValueError(
                f"has an image of {len(data)} bytes that cannot be read; expected a whole PNG or "
                f"JPEG. {type(error).__name__}: {error!s:.200}"
            ) from error
        time, height, width = found["image_grid_thw"][0].tolist()
        grid, merge = (time, height, width), self._processor.merge_size
        return Picture(name, found["pixel_values"].float(), grid, merge)

    @cached_property
    def _preparation(self) -> bytes:
        settings = json.dumps(self._processor.to_dict(), sort_keys=True, default=str)
        return blake2b(settings.encode(), digest_size=32).digest()

    @cached_property
    def _processor(self) -> Any:
        # Not transformers' own name for it, which wants torchvision where Pillow is enough.
        from transformers.models.auto.image_processing_auto import AutoImageProcessor

        kind = load_config(self._base_model).model_type
        if kind not in FAMILIES:
            raise ValueError(
                f"has a chunk that is not text, and {self._base_model} is a model of type {kind}. "
                f"The embedded engine shows images to {', '.join(FAMILIES)}: take one of these, "
                "or an engine behind base_url."
            )
        source = resolve_model(self._base_model)
        return from_pretrained(AutoImageProcessor, self._base_model, source)


class Sight:
    """How a model is given rows that may hold pictures."""

    def __init__(self, config: Any) -> None:
        self._image: int = config.image_token_id
        self._other: int = config.video_token_id

    def ids(self, tokens: Tensor) -> Tensor:
        """[B, T] ids as the model looks them up: pictures are its image token, and nothing else is.

        A text that holds that token, which a policy may sample, has the video token in its place.
        """
        spelled = torch.where(tokens == self._image, self._other, tokens)
        return torch.where(tokens < 0, self._image, spelled)

    def pixels(self, rows: Sequence[np.ndarray], device: torch.device) -> dict[str, Tensor]:
        """What a pass takes beside the ids of some rows, each [T]; nothing where all is text."""
        seen = [picture for row in rows for _, picture in pictures_in(row)]
        if not seen:
            return {}
        grids = torch.tensor([picture.grid for picture in seen], device=device)
        patches = torch.cat([picture.patches for picture in seen]).to(device)
        return {"pixel_values": patches, "image_grid_thw": grids}

    def positions(self, row: np.ndarray) -> np.ndarray:
        """[3, T] where each token is: in time, from the top, from the left; text alike in all."""
        found = np.empty((3, len(row)), np.int64)
        done = place = 0
        for start, picture in pictures_in(row):
            end, (time, *sides) = start + picture.tokens, picture.grid
            height, width = (side // picture.merge for side in sides)
            found[:, done:start] = np.arange(place, place + start - done)
            place += start - done
            found[:, start:end] = place + np.indices((time, height, width)).reshape(3, -1)
            place, done = place + max(time, height, width), end
        found[:, done:] = np.arange(place, place + len(row) - done)
        return found


def sight_of(model: Any) -> Sight | None:
    """How a model is given images; None where it takes none, or not in a way that is known here."""
    config = base_of(model).config
    return Sight(config) if config.model_type in FAMILIES else None


def is_text(prompt: types.ModelInput) -> bool:
    """Whether a prompt holds token ids alone."""
    return all(isinstance(chunk, types.EncodedTextChunk) for chunk in prompt.chunks)


def pictures_in(row: np.ndarray) -> Iterator[tuple[int, Picture]]:
    """Where the pictures of a row [T] begin, and which they are; each has to be whole."""
    end = 0
    for place in np.flatnonzero(row < 0).tolist():
        if place >= end:
            picture = _named[int(row[place])]
            yield place, picture
            end = place + picture.tokens


def whole_from(row: np.ndarray, start: int) -> int:
    """The last place up to ``start`` from which on no picture of a row [T] is cut."""
    while 0 < start < len(row) and row[start] < 0 and row[start] == row[start - 1]:
        start -= 1
    return start
