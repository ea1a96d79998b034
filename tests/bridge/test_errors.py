"""Errors: one root, standard-library parents, and everything pickles."""

import copy
import pickle
from typing import Any

from evert.bridge import errors
from evert.bridge.errors import AgentAborted, EvertError

ALL: list[Any] = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and value.__module__ == errors.__name__
]


def test_every_error_is_under_the_root_and_keeps_a_standard_parent() -> None:
    for error in set(ALL) - {EvertError, AgentAborted}:
        root, parent = error.__bases__
        assert root is EvertError, error
        assert parent.__module__ == "builtins", error
        assert issubclass(parent, Exception), error
    assert EvertError.__bases__ == (Exception,)
    assert AgentAborted.__bases__ == (BaseException,), "it passes through `except Exception`"
    assert issubclass(errors.AgentTimeoutError, TimeoutError)


def test_every_error_pickles_and_copies_with_its_type_and_message() -> None:
    protocols = range(pickle.HIGHEST_PROTOCOL + 1)
    for error in ALL:
        sent = error("The agent some.agent did this; expected that. Do so.")
        pickled = [pickle.loads(pickle.dumps(sent, protocol)) for protocol in protocols]
        for received in (*pickled, copy.copy(sent), copy.deepcopy(sent)):
            assert type(received) is error
            assert (str(received), received.args) == (str(sent), sent.args), error
