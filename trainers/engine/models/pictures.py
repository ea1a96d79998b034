"""Represents images in rows of token ids, and builds the model's inputs for them.

In a row of ids, an image is represented by its *name*, repeated once for each of its tokens. The
name is a negative number computed by hashing the image's bytes and the processor's settings. This
way, code that compares rows by their ids (prefix cache, duplicate prompts, random streams) doesn't
have to handle images specially. The forward pass looks up pictures by name in a table of weak
references, so whoever creates a row has to keep the row's pictures until the pass is done.

Shapes: B rows, T tokens per row, P patches per image, D values per patch.
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

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")  # models that accept images
_CACHE_BYTES = 2**28  # size of the cache that keeps pictures for later turns and for training


@dataclass(frozen=True, eq=False)
class Picture:
    """A preprocessed image."""

    name: int  # negative; the same for identical bytes and settings
    patches: Tensor  # [P, D] float32
    grid: tuple[int, int, int]  # number of patches along time (1), height and width
    merge: int  # ``merge`` x ``merge`` patches become one token

    @property
    def tokens(self) -> int:
        """Number of tokens the image takes up."""
        return math.prod(self.grid) // self.merge**2


_in_use: WeakValueDictionary[int, Picture] = WeakValueDictionary()  # by name
_lock = Lock()  # held while looking up or adding a picture


@dataclass(frozen=True)
class PictureRow:
    """The ids and pictures of a prompt or datum. Keep this object while its ids are in use."""

    ids: list[int]  # token ids and picture names
    pictures: tuple[Picture, ...] = ()


class PictureReader:
    """Parses prompts and data for one base model."""

    def __init__(self, base_model: str) -> None:
        self._base_model = base_model
        self._last: OrderedDict[int, Picture] = OrderedDict()

    def read(self, prompt: types.ModelInput) -> PictureRow:
        """Parse a prompt into ids and pictures. Thread-safe.

        Raises:
            ValueError: The model doesn't accept the prompt. The message continues a sentence
                that starts with "The prompt".
        """
        if is_text(prompt):
            return PictureRow(prompt.to_ints())
        ids: list[int] = []
        pictures: list[Picture] = []
        for chunk in prompt.chunks:
            if isinstance(chunk, types.EncodedTextChunk):
                if min(chunk.tokens, default=0) < 0:
                    raise ValueError(
                        f"contains token id {min(chunk.tokens)}; expected 0 or more. "
                        "Encode the prompt with the model's own tokenizer."
                    )
                ids += chunk.tokens
            elif isinstance(chunk, types.ImageChunk):
                pictures.append(self._picture(chunk))
                ids += [pictures[-1].name] * pictures[-1].tokens
            else:
                raise ValueError(
                    f"contains a chunk of type {chunk.type!r}, which is neither text nor an image. "
                    "The embedded engine accepts images as bytes (ImageChunk), but not audio. Send "
                    "only text and images."
                )
        return PictureRow(ids, tuple(pictures))

    def _picture(self, chunk: types.ImageChunk) -> Picture:
        digest = blake2b(chunk.data, digest_size=8, key=self._preparation).digest()
        name = -1 - (int.from_bytes(digest) >> 1)
        with _lock:
            picture = self._last.pop(name, None) or _in_use.get(name)
        if picture is None:
            picture = self._prepared(name, chunk.data)
        with _lock:  # if another thread was faster, use the picture it added to ``_in_use``
            picture = self._last[name] = _in_use.setdefault(name, picture)
            while sum(cached.patches.nbytes for cached in self._last.values()) > _CACHE_BYTES:
                self._last.popitem(last=False)
        if chunk.expected_tokens not in (None, picture.tokens):
            raise ValueError(
                f"contains an image that takes {picture.tokens} tokens, but expected_tokens is "
                f"{chunk.expected_tokens}. Compute the number with the image processor of "
                f"{self._base_model}."
            )
        return picture

    def _prepared(self, name: int, data: bytes) -> Picture:
        try:
            with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
                inputs = self._processor(images=[image.convert("RGB")], return_tensors="pt")
        except Exception as error:  # Pillow's decoders can raise anything
            raise ValueError(
                f"contains an image of {len(data)} bytes that can't be decoded; expected a "
                f"complete PNG or JPEG. {type(error).__name__}: {error!s:.200}"
            ) from error
        time, height, width = inputs["image_grid_thw"][0].tolist()
        grid, merge = (time, height, width), self._processor.merge_size
        return Picture(name, inputs["pixel_values"].float(), grid, merge)

    @cached_property
    def _preparation(self) -> bytes:
        settings = json.dumps(self._processor.to_dict(), sort_keys=True, default=str)
        return blake2b(settings.encode(), digest_size=32).digest()

    @cached_property
    def _processor(self) -> Any:
        # Importing this from the top-level package would require torchvision, but Pillow is enough.
        from transformers.models.auto.image_processing_auto import AutoImageProcessor

        kind = load_config(self._base_model).model_type
        if kind not in FAMILIES:
            raise ValueError(
                f"contains a chunk that is not text, but {self._base_model} is a model of type "
                f"{kind}. The embedded engine accepts images only for {', '.join(FAMILIES)}. Use "
                "one of these, or set base_url to use a service."
            )
        source = resolve_model(self._base_model)
        return from_pretrained(AutoImageProcessor, self._base_model, source)


class VisionInputs:
    """Builds a model's inputs for rows that may contain pictures."""

    def __init__(self, config: Any) -> None:
        self._image_token: int = config.image_token_id
        self._video_token: int = config.video_token_id

    def ids(self, tokens: Tensor) -> Tensor:
        """Return the [B, T] ids to embed, with picture names replaced by the image token.

        An image token in the text, which a policy may have sampled, is replaced by the video token.
        """
        spelled = torch.where(tokens == self._image_token, self._video_token, tokens)
        return torch.where(tokens < 0, self._image_token, spelled)

    def pixels(self, rows: Sequence[np.ndarray], device: torch.device) -> dict[str, Tensor]:
        """Return the inputs for the pictures in the given rows, or {} if there are no pictures."""
        seen = [picture for row in rows for _, picture in pictures_in(row)]
        if not seen:
            return {}
        grids = torch.tensor([picture.grid for picture in seen], device=device)
        patches = torch.cat([picture.patches for picture in seen]).to(device)
        return {"pixel_values": patches, "image_grid_thw": grids}

    def positions(self, row: np.ndarray) -> np.ndarray:
        """Return [3, T] positions along time, height and width. For text, all three are equal."""
        positions = np.empty((3, len(row)), np.int64)
        filled = place = 0
        for start, picture in pictures_in(row):
            end, (time, *sides) = start + picture.tokens, picture.grid
            height, width = (side // picture.merge for side in sides)
            positions[:, filled:start] = np.arange(place, place + start - filled)
            place += start - filled
            positions[:, start:end] = place + np.indices((time, height, width)).reshape(3, -1)
            place, filled = place + max(time, height, width), end
        positions[:, filled:] = np.arange(place, place + len(row) - filled)
        return positions


def vision_inputs(model: Any) -> VisionInputs | None:
    """Return a model's ``VisionInputs``, or None if its type is not in ``FAMILIES``."""
    config = base_of(model).config
    return VisionInputs(config) if config.model_type in FAMILIES else None


def is_text(prompt: types.ModelInput) -> bool:
    """Return whether a prompt consists only of token ids."""
    return all(isinstance(chunk, types.EncodedTextChunk) for chunk in prompt.chunks)


def pictures_in(row: np.ndarray) -> Iterator[tuple[int, Picture]]:
    """Yield each picture in a row, with its start index. The row must contain whole pictures."""
    end = 0
    for place in np.flatnonzero(row < 0).tolist():
        if place >= end:
            picture = _in_use[int(row[place])]
            yield place, picture
            end = place + picture.tokens


def uncut_start(row: np.ndarray, start: int) -> int:
    """Return the last index up to ``start`` where a row can be cut without splitting a picture."""
    while 0 < start < len(row) and row[start] < 0 and row[start] == row[start - 1]:
        start -= 1
    return start
