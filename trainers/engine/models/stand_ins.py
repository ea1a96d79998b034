"""Stand-ins: local models that are used in place of the models a script asks for.

    StandIns    maps model names to stand-ins
    lookups     makes the Cookbook's model name lookups return the stand-in's data
    tokenizers  does the same for transformers' ``AutoTokenizer``, inside a block

Names are replaced when a client is created, so checkpoints record the stand-in's name.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evert.bridge.tokens.bases import BASE_RENDERER, BASES
from evert.bridge.tokens.pretrained import register_folder
from evert.trainers.engine.common.errors import ModelNotFoundError
from evert.trainers.engine.common.installing import Swap
from evert.trainers.engine.models.base_models import base_context_length, resolve_model
from evert.trainers.engine.models.encoding import make_thread_safe

if TYPE_CHECKING:
    from tinker_cookbook.model_info import ModelAttributes
    from tinker_cookbook.renderers import Renderer

logger = logging.getLogger(__name__)


class StandIns:
    """Maps names of models that aren't local to stand-ins. The first matching pattern wins."""

    def __init__(self, patterns: Mapping[str, str] | None = None) -> None:
        self._patterns = dict(patterns or {})
        self._warned: set[str] = set()
        for pattern, model in self._patterns.items():
            try:
                base_context_length(model)
            except ModelNotFoundError as error:
                raise ModelNotFoundError(
                    f"stand_ins maps {pattern!r} to {model!r}, which can't be loaded: {error}"
                ) from error

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def of(self, name: str) -> str:
        """Return the stand-in for ``name``, or ``name`` itself. Warn once per replaced name."""
        if not self._patterns or name in BASES or Path(name).expanduser().is_dir():
            return name
        base_name = name.partition(":")[0]  # Tinker variants: "Qwen/Qwen3.6-35B-A3B:peft:262144"
        for pattern, model in self._patterns.items():
            if fnmatchcase(name, pattern) or fnmatchcase(base_name, pattern):
                self.warn(model, name)
                return model
        return name

    def warn(self, present: str, absent: str) -> None:
        """Warn, once per ``absent`` model, that ``present`` is used in its place."""
        if absent not in self._warned:
            self._warned.add(absent)
            logger.warning(
                "%s STANDS IN FOR %s (stand_ins). Samples, training and metrics all come from the "
                "stand-in, and tell you nothing about what it replaces.",
                *(present, absent),
            )


def lookups(stand_ins: StandIns) -> list[Swap]:
    """Return replacements for the Cookbook's functions that look up model names.

    The replacement for ``get_model_attributes`` also knows the bundled base models.
    """
    from tinker_cookbook import model_info, renderers, tokenizer_utils

    make_tokenizer, get_attributes = tokenizer_utils.get_tokenizer, model_info.get_model_attributes
    make_renderer = renderers.get_renderer

    def get_tokenizer(model_name: str) -> Any:
        name = stand_ins.of(model_name)
        register_folder(name)
        return make_thread_safe(make_tokenizer(name))

    def get_model_attributes(model_name: str) -> "ModelAttributes":
        return _attributes(get_attributes, model_name, stand_ins.of(model_name))

    def get_renderer(name: str, tokenizer: Any, *args: Any, **options: Any) -> "Renderer":
        renderer = make_renderer(name, tokenizer, *args, **options)
        if not stand_ins or _has_tokens_of(renderer):
            return renderer
        stand_ins.warn(BASE_RENDERER, f"the chat format {name}, whose special tokens are missing")
        return make_renderer(BASE_RENDERER, tokenizer, *args, **options)

    return [
        ("get_tokenizer", make_tokenizer, get_tokenizer),
        ("get_model_attributes", get_attributes, get_model_attributes),
        ("get_renderer", make_renderer, get_renderer),
    ]


def _has_tokens_of(renderer: "Renderer") -> bool:
    try:
        return bool(renderer.get_stop_sequences())
    except (AssertionError, ValueError):  # "Expected single token for <|eot_id|>"
        return False


def _attributes(
    get_attributes: Callable[[str], "ModelAttributes"], name: str, model: str
) -> "ModelAttributes":
    from tinker_cookbook.exceptions import ConfigurationError
    from tinker_cookbook.model_info import ModelAttributes

    try:
        attributes = get_attributes(name)
    except (ConfigurationError, KeyError, ValueError):
        if model not in BASES:
            raise
        attributes = ModelAttributes("evert", "1", "1M", True, ())
    if model not in BASES:
        return attributes
    formats = dict.fromkeys([BASE_RENDERER, *attributes.recommended_renderers])
    return replace(attributes, recommended_renderers=tuple(formats), is_vl=False)


@contextmanager
def tokenizers(stand_ins: StandIns) -> Iterator[None]:
    """Make ``AutoTokenizer.from_pretrained`` load the stand-in's tokenizer inside the block."""
    if not stand_ins:
        yield
        return
    from transformers import AutoTokenizer

    original: Any = vars(AutoTokenizer)["from_pretrained"]

    def from_pretrained(cls: Any, name: Any, *args: Any, **options: Any) -> Any:
        model = stand_ins.of(str(name))
        source = name if model == str(name) else resolve_model(model)
        return original.__func__(cls, source, *args, **options)

    setattr(AutoTokenizer, "from_pretrained", classmethod(from_pretrained))  # noqa: B010
    try:
        yield
    finally:
        setattr(AutoTokenizer, "from_pretrained", original)  # noqa: B010
