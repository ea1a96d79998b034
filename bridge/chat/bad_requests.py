"""The HTTP errors that answer calls that cannot be served."""

import importlib
import traceback
from collections.abc import Sequence
from functools import cache
from typing import Any, NoReturn

import openai


def malformed(name: str, expected: str, value: object) -> openai.BadRequestError:
    """Return the 400 for a field whose value has the wrong form."""
    return bad_request(f"'{name}' must be {expected}, got {value!r:.200}.", param=name)


def unexpected(place: str, value: object, expected: str) -> openai.BadRequestError:
    """Return the 400 for an unexpected value in a part of a field, such as ``messages[0]``."""
    return bad_request(f"{place} is {value!r:.200}; expected {expected}", param=place)


def bad_request(
    message: str, *, param: str | None = None, code: str | None = None
) -> openai.BadRequestError:
    """Return the error that the OpenAI SDK raises when a server answers with HTTP 400."""
    return openai.BadRequestError(
        message,
        response=_response(),
        body={"message": message, "type": "invalid_request_error", "param": param, "code": code},
    )


def model_not_found(name: str, models: Sequence[str]) -> openai.NotFoundError:
    """Return the OpenAI SDK's error for HTTP 404: no model has this name."""
    message = f"There is no model {name!r:.200} here. Models: {', '.join(models)}."
    body = {"message": message, "type": "invalid_request_error", "param": "model"}
    return openai.NotFoundError(
        message, response=_response(404), body={**body, "code": "model_not_found"}
    )


def server_error(status: int, message: str) -> openai.InternalServerError:
    """Return the OpenAI SDK's error for an HTTP status of 500 or more."""
    body = {"message": message, "type": "api_error", "param": None, "code": "server_error"}
    return openai.InternalServerError(message, response=_response(status), body=body)


def failed(model: str, how: str) -> openai.BadRequestError:
    """Return the 400 for a call to a model that gave no reply (code ``model_failed``)."""
    message = f"The model {model!r} {how:.1000}"
    return bad_request(message, param="model", code="model_failed")


def context_length_exceeded(length: int, limit: int) -> openai.BadRequestError:
    """Return the 400 for a prompt that is too long (code ``context_length_exceeded``).

    It has Anthropic's and OpenAI's sentences: agents look for either, and compact their history.
    """
    return bad_request(
        f"prompt is too long: {length} tokens > {limit} maximum. This model's maximum context "
        f"length is {limit} tokens, however your messages resulted in {length} tokens. Please "
        "reduce the length of the messages.",
        param="messages",
        code="context_length_exceeded",
    )


@cache
def _response(status: int = 400) -> Any:
    """Return a response to share among errors, since an agent may make thousands of bad calls."""
    base = openai.DefaultHttpxClient.__mro__[1]  # httpx2's from openai 3 on, httpx's before
    http = importlib.import_module(base.__module__.partition(".")[0])
    request = http.Request("POST", "http://evert.invalid/v1/chat/completions")
    return http.Response(status, request=request)


def refuse(what: str, error: Exception) -> NoReturn:
    """Raise the 400 for the field ``what``, because reading it raised ``error``."""
    if isinstance(error, openai.BadRequestError):
        raise error
    reason = "".join(traceback.format_exception_only(error)).strip()
    raise bad_request(
        f"{what} cannot be read; send plain JSON values. {reason:.300}", param=what
    ) from error
