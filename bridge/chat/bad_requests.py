"""HTTP errors returned to an agent when its call cannot be answered."""

import importlib
import traceback
from collections.abc import Sequence
from functools import cache
from typing import Any, NoReturn

import openai


def malformed(name: str, expected: str, value: object) -> openai.BadRequestError:
    """Return the 400 error for a field with an invalid value."""
    return bad_request(f"'{name}' must be {expected}, got {value!r:.200}.", param=name)


def unexpected(place: str, value: object, expected: str) -> openai.BadRequestError:
    """Return the 400 error for an unexpected value at a path such as ``messages[0]``."""
    return bad_request(f"{place} is {value!r:.200}; expected {expected}", param=place)


def bad_request(
    message: str, *, param: str | None = None, code: str | None = None
) -> openai.BadRequestError:
    """Return the error that the OpenAI SDK raises for an HTTP 400 response."""
    return openai.BadRequestError(
        message,
        response=_response(),
        body={"message": message, "type": "invalid_request_error", "param": param, "code": code},
    )


def model_not_found(name: str, models: Sequence[str]) -> openai.NotFoundError:
    """Return the OpenAI SDK's 404 error for an unknown model name."""
    message = f"Model {name!r:.200} not found. Available models: {', '.join(models)}."
    body = {"message": message, "type": "invalid_request_error", "param": "model"}
    return openai.NotFoundError(
        message, response=_response(404), body={**body, "code": "model_not_found"}
    )


def server_error(status: int, message: str) -> openai.InternalServerError:
    """Return the error that the OpenAI SDK raises for a 5xx response."""
    body = {"message": message, "type": "api_error", "param": None, "code": "server_error"}
    return openai.InternalServerError(message, response=_response(status), body=body)


def failed(model: str, how: str) -> openai.BadRequestError:
    """Return the 400 error for a model that failed to reply (code ``model_failed``)."""
    message = f"The model {model!r} {how:.1000}"
    return bad_request(message, param="model", code="model_failed")


def context_length_exceeded(length: int, limit: int) -> openai.BadRequestError:
    """Return the 400 error for a prompt that is too long (code ``context_length_exceeded``).

    The message combines Anthropic's and OpenAI's wording, because agents look for one or the other
    in error messages to decide when to compact their history.
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
    """Return an empty response. It is cached, because an agent may make thousands of bad calls."""
    base = openai.DefaultHttpxClient.__mro__[1]  # openai 3 uses httpx2, older versions httpx
    http = importlib.import_module(base.__module__.partition(".")[0])
    request = http.Request("POST", "http://evert.invalid/v1/chat/completions")
    return http.Response(status, request=request)


def refuse(what: str, error: Exception) -> NoReturn:
    """Raise a 400 error saying that the field ``what`` could not be read because of ``error``."""
    if isinstance(error, openai.BadRequestError):
        raise error
    reason = "".join(traceback.format_exception_only(error)).strip()
    raise bad_request(
        f"{what} could not be read; send plain JSON values. {reason:.300}", param=what
    ) from error
