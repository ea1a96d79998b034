"""Encodes and decodes the bodies of ``/v1/completions`` requests and responses with token ids.

    CompletionRequest  prompt and sampling parameters
    write_request      request -> bytes, for clients
    read_request       bytes -> request, for our server
    CompletionAnswer   the sampled sequences and the prompt's log-probabilities
    write_answer       answer -> bytes, for our server
    read_answer        bytes -> answer, for clients

The format is vLLM's (``return_token_ids``). Two options are only sent to our own server:
``detokenize: false``, to omit texts, and ``max_tokens: 0`` with ``prompt_logprobs``, to score a
prompt without sampling. llama.cpp's server uses slightly different fields and returns one entry per
token (``ServerKind``). Log-probabilities are float32 values in exact decimal notation.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import orjson
from tinker import types

from evert.bridge.models.sampling_ranges import RANGES
from evert.trainers.engine.common.errors import SamplingRequestError
from evert.trainers.serving.errors import UnfitServerError

PROMPT_LOGPROBS = "prompt_logprobs"
MAX_TOKENS = 16
"""Default for ``max_tokens``. (``null`` means as many as the context allows.)"""
MOST_REPLIES = 256
"""Maximum number of replies per request. They stay in memory until the last one is sampled."""

_REQUIRED: Any = object()

NOT_SERVED: dict[str, tuple[Any, ...]] = {
    "stream": (None, False),
    "echo": (None, False),
    "suffix": (None, ""),
    "best_of": (None, 1),
    "min_p": (None, 0),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "min_tokens": (None, 0),
    "logit_bias": (None, {}),
    "use_beam_search": (None, False),
    "response_format": (None, {"type": "text"}),
    "prompt_embeds": (None,),
}
"""Maps vLLM fields that we don't support to the values that we accept, as they have no effect."""


class ServerKind(Enum):
    """The type of a server, according to ``owned_by`` in its ``/v1/models``."""

    EVERT = "evert"
    LLAMA_CPP = "llamacpp"
    VLLM = "vllm"
    """vLLM, or any other server with the same API."""

    @classmethod
    def of(cls, owner: object) -> "ServerKind":
        """Infer a server's type from its models' ``owned_by``."""
        return next((dialect for dialect in cls if dialect.value == owner), cls.VLLM)


@dataclass(frozen=True)
class CompletionRequest:
    """A request to sample replies or to score a prompt."""

    model: str
    prompt: list[int] | str
    """Token ids, or text for the server to tokenize."""
    params: types.SamplingParams
    """If ``max_tokens`` is 0, the prompt is only scored and nothing is sampled."""
    count: int = 1
    prompt_logprobs: bool = False
    texts: bool = False


@dataclass(frozen=True)
class CompletionAnswer:
    """The response to a request."""

    sequences: list[types.SampledSequence]
    prompt_logprobs: list[float | None] | None = None
    """One value per prompt token (None for the first), or None if not requested."""
    prompt_ids: list[int] | None = None
    """The prompt's ids according to the server, or None if it didn't return them."""


# -- requests ------------------------------------------------------------------------------------


def write_request(request: CompletionRequest, dialect: ServerKind = ServerKind.EVERT) -> bytes:
    """Encode a request for a server of the given type."""
    params = request.params
    body: dict[str, Any] = {
        "model": request.model,
        "prompt": request.prompt,
        "n": request.count,
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "seed": params.seed,
        "top_k": params.top_k if params.top_k > 0 else None,
        "top_p": params.top_p if params.top_p < 1 else None,
        **_written_stop(params.stop, dialect),
        PROMPT_LOGPROBS: 0 if request.prompt_logprobs else None,
    }
    if dialect is ServerKind.LLAMA_CPP:
        # by default, llama.cpp truncates the distribution; with logprobs=0 it returns no logprobs
        cut = [name for name in ("top_k", "top_p") if body[name] is not None]
        body |= {"logprobs": 1, "samplers": ["temperature", *cut]}
    else:
        body |= {"logprobs": 0, "return_token_ids": True, "add_special_tokens": False}
        body["skip_special_tokens"] = None if dialect is ServerKind.EVERT else False
    if dialect is ServerKind.EVERT and not request.texts:
        body["detokenize"] = False
    body = {name: value for name, value in body.items() if value is not None}
    open_end = -1 if dialect is ServerKind.LLAMA_CPP else None
    return orjson.dumps({"max_tokens": open_end, **body})


def _written_stop(stop: str | Sequence[str] | Sequence[int] | None, dialect: ServerKind) -> Any:
    """Return the stop fields. As in Tinker, stops in a request replace the model's stop tokens."""
    if stop is None:
        return {}
    items = [stop] if isinstance(stop, str) else list(stop)
    flags = (
        {} if dialect is ServerKind.LLAMA_CPP else {"ignore_eos": True}
    )  # llama.cpp's ignore_eos bans the end token entirely
    if all(isinstance(item, int) for item in items):
        return {"stop_token_ids": items, **flags}
    return {"stop": items, "include_stop_str_in_output": True, **flags}


def read_request(content: bytes) -> CompletionRequest:
    """Parse a request body."""
    try:
        body = orjson.loads(content)
    except ValueError as error:
        raise SamplingRequestError(
            f"The body is not JSON: {error}. Send a JSON object, as for vLLM's /v1/completions."
        ) from None
    if not isinstance(body, dict):
        raise SamplingRequestError(
            f"The body is {_short_repr(body)}; expected a JSON object, as for vLLM's "
            "/v1/completions."
        )
    for name, neutral in NOT_SERVED.items():
        if body.get(name) not in neutral:
            raise SamplingRequestError(
                f"{name}={_short_repr(body[name])} is not supported here. Leave it out."
            )
    scoring = body.get(PROMPT_LOGPROBS) is not None
    ids_wanted = body.get("return_token_ids", False)
    # In vLLM, top_k=0 also means no limit.
    values = {"max_tokens": MAX_TOKENS, **body, "top_k": body.get("top_k") or None}
    fields = {**FIELDS, "max_tokens": _token_limit(0 if scoring else 1)}
    settings = {name: _field(name, values.get(name), *field) for name, field in fields.items()}
    how = {name: settings[name] for name in ("max_tokens", "temperature", "seed", "top_k", "top_p")}
    params = types.SamplingParams(**how, stop=_read_stop(settings, bool(body.get("ignore_eos"))))
    texts = not ids_wanted or body.get("detokenize") is not False
    return CompletionRequest(
        settings["model"], settings["prompt"], params, settings["n"], scoring, texts
    )


def _read_stop(settings: Mapping[str, Any], ignores_end: bool) -> Any:
    """Return the request's stops, or None to use the model's end tokens."""
    ids, texts = settings["stop_token_ids"], settings["stop"]
    if ids and texts:
        raise SamplingRequestError("Got both stop and stop_token_ids; expected only one of them.")
    return ids or texts or ([] if ignores_end else None)


def _field(
    name: str, value: Any, fits: Callable[[Any], bool], expected: str, missing: Any = _REQUIRED
) -> Any:
    if value is None and missing is not _REQUIRED:
        return missing
    if not fits(value):
        raise SamplingRequestError(f"{name} is {_short_repr(value)}; expected {expected}.")
    return value


def _short_repr(value: object) -> str:
    return f"{value!r:.80}"


def _token_limit(least: int) -> tuple[Callable[[Any], bool], str, None]:
    expected = f"an integer of at least {least}, or null for as many as the context allows"
    return lambda value: type(value) is int and least <= value < 2**31, expected, None


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 2**31 for v in value)


def _are_texts(value: object) -> bool:
    listed = value if isinstance(value, list) else [value]
    return all(isinstance(text, str) and text for text in listed)


FIELDS: dict[str, tuple[Any, ...]] = {
    "model": (lambda value: isinstance(value, str), "the model's name", ""),
    "prompt": (
        lambda value: (isinstance(value, str) or _are_ids(value)) and bool(value),
        "one prompt: token ids or a string",
    ),
    "n": (
        lambda value: type(value) is int and 1 <= value <= MOST_REPLIES,
        f"an integer from 1 to {MOST_REPLIES}",
        1,
    ),
    "temperature": (*RANGES["temperature"], 1.0),
    "seed": (*RANGES["seed"], None),
    "top_k": (*RANGES["top_k"], -1),
    "top_p": (*RANGES["top_p"], 1.0),
    "stop_token_ids": (_are_ids, "token ids", []),
    "stop": (_are_texts, "a non-empty string or a list of non-empty strings", []),
}
"""Maps a request field to a check, a description of valid values and, if optional, a default."""


# -- answers -------------------------------------------------------------------------------------


def write_answer(
    request: CompletionRequest, answer: CompletionAnswer, decode: Callable[[Any], str] | None
) -> bytes:
    """Encode a response, without texts if ``decode`` is None."""
    choices = [_choice(index, sequence, decode) for index, sequence in enumerate(answer.sequences)]
    ids, scores = answer.prompt_ids or [], answer.prompt_logprobs
    if scores is not None:
        choices = choices or [{"index": 0, "text": "", "token_ids": [], "finish_reason": "length"}]
        choices[0][PROMPT_LOGPROBS] = [
            None if score is None else {str(token): {"logprob": score}}
            for token, score in zip(ids, scores, strict=True)
        ]
    sampled = sum(len(choice["token_ids"]) for choice in choices)
    if decode is not None:
        for choice in choices:
            choice["prompt_token_ids"] = ids
    body = {
        "object": "text_completion",
        "model": request.model,
        "choices": choices,
        "usage": {
            "prompt_tokens": len(ids),
            "completion_tokens": sampled,
            "total_tokens": len(ids) + sampled,
        },
    }
    return orjson.dumps(body)


def _choice(
    index: int, sequence: types.SampledSequence, decode: Callable[[Any], str] | None
) -> dict[str, Any]:
    tokens = sequence.tokens
    logprobs: dict[str, Any] = {"token_logprobs": sequence.logprobs}
    if decode is not None:
        logprobs["tokens"] = [decode([token]) for token in tokens]
    return {
        "index": index,
        "text": "" if decode is None else decode(tokens),
        "token_ids": tokens,
        "logprobs": logprobs,
        "finish_reason": sequence.stop_reason,
    }


def read_answer(content: bytes, request: CompletionRequest) -> CompletionAnswer:
    """Parse a server's response body."""
    try:
        choices = orjson.loads(content)["choices"]
        sampled_choices = choices if request.params.max_tokens != 0 else []
        sequences = [_read_choice(choice, request) for choice in sampled_choices]
        first = choices[0]
        scores = _read_scores(first, request) if request.prompt_logprobs else None
        prompt_ids = first.get("prompt_token_ids")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise UnfitServerError(
            f"The response is not in the format of vLLM's /v1/completions ({error!r}): "
            f"{content[:200]!r}. {FIT}"
        ) from error
    return CompletionAnswer(sequences, scores, prompt_ids)


FIT = (
    "Expected a server that returns the sampled token ids and their log-probabilities: vLLM 0.10.2 "
    "or newer, llama.cpp's server, or `evert serve`."
)


def _read_choice(choice: Mapping[str, Any], request: CompletionRequest) -> types.SampledSequence:
    logprobs = choice.get("logprobs") or {}
    if "content" in logprobs:  # llama.cpp returns one entry per token
        tokens: Any = [entry.get("id") for entry in logprobs["content"]]
        scores: Any = [entry.get("logprob") for entry in logprobs["content"]]
    else:
        tokens, scores = choice.get("token_ids"), logprobs.get("token_logprobs")
    if tokens is None or None in tokens:
        raise UnfitServerError(f"The server did not return token ids. {FIT}")
    if scores is None or None in scores or len(scores) != len(tokens):
        count = 0 if scores is None else len(scores)
        raise UnfitServerError(
            f"The server returned {count} log-probabilities for {len(tokens)} tokens. {FIT}"
        )
    reason: types.StopReason = "length" if choice["finish_reason"] == "length" else "stop"
    tokens, scores, reason = _cut(tokens, scores, reason, request.params.stop)
    return types.SampledSequence(
        stop_reason=reason,
        sequence_id=f"sequence-{choice.get('index', 0)}",
        tokens_np=np.array(tokens, dtype=np.int32),
        logprobs_np=np.array(scores, dtype=np.float32),
    )


def _cut(
    tokens: list[int], logprobs: list[float], reason: types.StopReason, stop: Any
) -> tuple[list[int], list[float], types.StopReason]:
    """Truncate a reply after its first stop token, for servers that ignore ``stop_token_ids``."""
    if stop and not isinstance(stop, str) and isinstance(stop[0], int):
        at = next((index for index, token in enumerate(tokens) if token in {*stop}), None)
        if at is not None:
            return tokens[: at + 1], logprobs[: at + 1], "stop"
    return tokens, logprobs, reason


def _read_scores(choice: Mapping[str, Any], request: CompletionRequest) -> list[float | None]:
    scores = choice.get(PROMPT_LOGPROBS)
    if scores is None or len(scores) != len(request.prompt):
        raise UnfitServerError(
            "The server did not return the prompt's log-probabilities. Expected vLLM's "
            "prompt_logprobs, which `evert serve` also supports."
        )
    return [
        None if entry is None else entry[str(token)]["logprob"]
        for token, entry in zip(request.prompt, scores, strict=True)
    ]
