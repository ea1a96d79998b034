"""The tiny base models that ship with evert, and how to get the renderer for any base model.

    evert-tiny        plays identity and guess-number; the default model
    evert-tiny-20q    knows the nouns of Twenty Questions
    evert-tiny-moves  reads a tic-tac-toe board and a Blackjack hand

Each base model is a folder in Hugging Face format, created with ``python -m bases``, that contains
a tokenizer and weights for the embedded engine. The bridge itself only needs the tokenizer of
``evert-tiny``. It is the default in ``ChatAgentEnv``, so a single argument is enough to create an
Env, and no network access is needed.
"""

import ast
import logging
import sys
from collections.abc import Mapping
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evert.bridge.errors import InvalidModelError, did_you_mean
from evert.bridge.tokens.pretrained import from_pretrained, register_folder

if TYPE_CHECKING:
    from tinker_cookbook.renderers import Renderer

logger = logging.getLogger(__name__)

BASE_MODEL = "evert-tiny"
"""The name of the default base model, as used in settings and in the Cookbook."""

BASES = (BASE_MODEL, "evert-tiny-20q", "evert-tiny-moves")  # all bundled base models
BASE_RENDERER = "qwen3_instruct"  # the Cookbook renderer that they were trained with

TEMPLATE, HERMES = "template", "template_hermes"
"""Renderers that use the model's chat template (``template.py``); HERMES adds Hermes tools."""


def base_path(name: str = BASE_MODEL) -> Path:
    """Return a base model's folder (``config.json``, ``model.safetensors``, ``tokenizer.json``)."""
    return Path(str(files("evert"))) / "bases" / name


@cache
def base_tokenizer(name: str = BASE_MODEL) -> Any:
    """Load a base model's tokenizer (once per process)."""
    from transformers import PreTrainedTokenizerFast  # AutoTokenizer takes 1 s longer to import

    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(base_path(name))
    # The Cookbook pickles renderers by this name, so it must not be a path on this machine.
    tokenizer.name_or_path = name
    # Disable the tokenizer's length warning, because the Env and the engine limit the prompt.
    tokenizer.model_max_length = sys.maxsize
    return tokenizer


def register_with_cookbook() -> None:
    """Register evert's renderers and the tokenizers of its base models with the Cookbook."""
    from tinker_cookbook.renderers import register_renderer
    from tinker_cookbook.tokenizer_utils import register_tokenizer

    register_renderer(TEMPLATE, partial(_template_of, hermes=False))
    register_renderer(HERMES, partial(_template_of, hermes=True))
    for name in BASES:
        register_tokenizer(name, partial(base_tokenizer, name))


@cache
def default_renderer() -> "Renderer":
    """Return the renderer of the default base model, which Envs use by default."""
    from tinker_cookbook.renderers import get_renderer

    return get_renderer(BASE_RENDERER, base_tokenizer(), model_name=BASE_MODEL)


def _template_of(
    tokenizer: Any,
    images: Any = None,
    *,
    hermes: bool,
    variables: Mapping[str, Any] | None = None,
) -> "Renderer":
    from evert.bridge.tokens.template import TemplateRenderer

    return TemplateRenderer(tokenizer, hermes=hermes, chat_template=variables)


def with_variables(name: str, variables: Mapping[str, Any]) -> str:
    """Add values for template variables to a renderer name: ``template(enable_thinking=False)``.

    The values can be Python values or strings (``"False"``). If there are none, the name is
    returned unchanged.

    Raises:
        InvalidModelError: The renderer does not use a chat template.
    """
    if not variables:
        return name
    if name not in (TEMPLATE, HERMES):
        raise InvalidModelError(
            f"chat_template.{next(iter(variables))} only works with the model's chat template, "
            f"which renderer_name={name} does not use. Pass renderer_name={TEMPLATE}, or remove "
            "the chat_template values."
        )
    values = {key: _value(value) for key, value in variables.items()}
    return f"{name}({', '.join(f'{key}={values[key]!r}' for key in sorted(values))})"


def _value(value: Any) -> Any:
    """Parse a variable's value. Strings may be Python literals or JSON's ``true`` or ``null``."""
    if not isinstance(value, str):
        return value
    words = {"true": True, "false": False, "null": None}
    try:
        return words[value] if value in words else ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value


def variables_of(name: str) -> dict[str, Any]:
    """Return the values in a renderer name created by ``with_variables``, or {}."""
    plain, opened, _ = name.partition("(")
    if not opened or plain not in (TEMPLATE, HERMES):
        return {}
    try:
        call = ast.parse(name, mode="eval").body
        keywords = call.keywords if isinstance(call, ast.Call) else []
        return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in keywords}
    except (ValueError, SyntaxError) as error:
        raise InvalidModelError(
            f"{name!r} is not a valid renderer name; expected {TEMPLATE}(NAME=VALUE, ...)."
        ) from error


def register_variant(name: str) -> None:
    """Register the renderer for a name created by ``with_variables``; ignore other names."""
    from tinker_cookbook.renderers import register_renderer

    values = variables_of(name)
    if values:
        is_hermes = name.startswith(HERMES)
        register_renderer(name, partial(_template_of, hermes=is_hermes, variables=values))


def renderer_name_of(base_model: str) -> str:
    """Return the renderer name that the Cookbook recommends for a base model, or ``template``.

    Raises:
        InvalidModelError: The Cookbook does not know the model, evert does not ship it, and it is
            not a folder.
    """
    from tinker_cookbook.exceptions import ConfigurationError
    from tinker_cookbook.model_info import get_recommended_renderer_name

    if base_model in BASES:
        return BASE_RENDERER
    try:
        return get_recommended_renderer_name(base_model)
    except (ConfigurationError, KeyError, ValueError) as error:
        if Path(base_model).expanduser().is_dir():
            return TEMPLATE
        hint = did_you_mean(base_model, BASES, "{}")
        raise InvalidModelError(
            f"The Cookbook does not recommend a renderer for the model {base_model!r}, which is "
            f"neither a folder nor one of the base models {', '.join(BASES)}.{hint} If the model "
            "exists, pass the renderer that it was trained with, for example "
            f"renderer_name={BASE_RENDERER}, or renderer_name={TEMPLATE} to use its chat template."
        ) from error


def model_renderer(base_model: str, renderer_name: str | None = None) -> "Renderer":
    """Create the renderer for a base model, with image support if the model accepts images.

    ``renderer_name`` defaults to ``renderer_name_of(base_model)``.

    Raises:
        InvalidModelError: There is no renderer with this name, or no renderer is known for the
            model.
    """
    from tinker_cookbook.exceptions import RendererError
    from tinker_cookbook.renderers import get_renderer
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    register_with_cookbook()
    register_folder(base_model)
    name = renderer_name or renderer_name_of(base_model)
    register_variant(name)
    images = _image_processor(base_model, name)
    tokenizer = get_tokenizer(base_model)
    try:
        return get_renderer(name, tokenizer, image_processor=images, model_name=base_model)
    except RendererError as error:
        raise InvalidModelError(
            f"renderer_name={name} is not a Cookbook renderer: {error} Leave it out to use the "
            "renderer that matches the model."
        ) from error


def _image_processor(model_name: str, renderer_name: str) -> Any:
    """Load the image processor, or return None if the model is text-only or loading fails."""
    if "_vl" not in renderer_name and not _takes_images(model_name):
        return None
    from tinker_cookbook.image_processing_utils import get_image_processor
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    folder = Path(model_name).expanduser()
    try:
        if folder.is_dir():
            return from_pretrained(AutoImageProcessor, model_name, str(folder))
        return get_image_processor(model_name)
    except (InvalidModelError, OSError, ValueError) as error:  # text works, images get a 400
        logger.warning(
            "Could not load an image processor for %s, so agents can only send text: %s",
            model_name,
            error,
        )
        return None


def _takes_images(model_name: str) -> bool:
    from tinker_cookbook.exceptions import ConfigurationError
    from tinker_cookbook.model_info import get_model_attributes

    try:
        return get_model_attributes(model_name).is_vl
    except (ConfigurationError, KeyError, ValueError):  # not a Cookbook model
        return False
