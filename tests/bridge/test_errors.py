"""One root; standard-library parents; everything pickles."""

import copy
import pickle

import openai
import pytest

from evert.bridge import errors
from evert.bridge.chat.bad_requests import bad_request
from evert.bridge.errors import AgentAborted, EvertError


def defined() -> dict[str, type[BaseException]]:
    return {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type)
        and issubclass(value, BaseException)
        and value.__module__ == errors.__name__
    }


ALL = sorted(defined().values(), key=lambda error: error.__name__)
UNDER_THE_ROOT = [error for error in ALL if error not in (EvertError, AgentAborted)]


@pytest.mark.parametrize("error", UNDER_THE_ROOT)
def test_every_error_is_under_the_root_and_keeps_a_standard_parent(
    error: type[BaseException],
) -> None:
    root, parent = error.__bases__

    assert root is EvertError
    assert parent.__module__ == "builtins"
    assert issubclass(parent, Exception)


def test_the_root_is_a_plain_exception() -> None:
    assert EvertError.__bases__ == (Exception,)


def test_the_abort_passes_through_except_exception() -> None:
    assert AgentAborted.__bases__ == (BaseException,)


@pytest.mark.parametrize("error", ALL)
def test_every_error_says_what_it_is_for(error: type[BaseException]) -> None:
    assert error.__doc__
    assert error.__doc__.rstrip().endswith(".")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("error", ALL)
def test_every_error_pickles_with_its_type_and_message(
    error: type[BaseException], protocol: int
) -> None:
    sent = error("The agent some.agent did this; expected that. Do so.")
    received = pickle.loads(pickle.dumps(sent, protocol))

    assert type(received) is error
    assert str(received) == "The agent some.agent did this; expected that. Do so."
    assert received.args == sent.args


@pytest.mark.parametrize("error", ALL)
def test_every_error_copies(error: type[BaseException]) -> None:
    sent = error("Text.")

    assert type(copy.copy(sent)) is error
    assert copy.deepcopy(sent).args == ("Text.",)


def test_a_timeout_is_caught_as_a_timeout_is_everywhere() -> None:
    import asyncio

    with pytest.raises(asyncio.TimeoutError):
        raise errors.AgentTimeoutError("Too late.")


def test_requests_that_cannot_be_served_stay_outside_of_the_tree() -> None:
    assert not isinstance(bad_request("No."), EvertError)
    assert isinstance(bad_request("No."), openai.BadRequestError)
