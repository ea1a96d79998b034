"""``ControlTokens`` marks control tokens in texts; ``MarkedTokenizer`` spells them.

``tests/bridge/injection`` holds every field of every request against them; here is what no request
of its shapes meets.
"""

import copy
from typing import Any

from tinker_cookbook.renderers.base import Message, ToolCall
from tokenizers import AddedToken  # type: ignore[import-untyped]

from evert.bridge.tokens.bases import base_tokenizer
from evert.bridge.tokens.escaping import ControlTokens, MarkedBackend, MarkedTokenizer

END = "<|im_end|>"


def control_of(tokenizer: Any = None) -> ControlTokens:
    return ControlTokens(base_tokenizer() if tokenizer is None else tokenizer)


def with_tokens(*added: AddedToken) -> Any:
    tokenizer = copy.deepcopy(base_tokenizer())
    tokenizer.add_tokens(list(added))
    return tokenizer


def ids(text: str, tokenizer: Any = None) -> list[int]:
    """Token ids of a text, marked."""
    chosen = base_tokenizer() if tokenizer is None else tokenizer
    control = ControlTokens(chosen)
    return MarkedTokenizer(chosen, control).encode(control.mark(text), add_special_tokens=False)


def test_every_added_token_is_a_control_token_but_white_space_and_single_characters() -> None:
    texts = [" ", "    ", "§", " § "]
    added = [AddedToken(text, special=False) for text in ("<plain>", *texts)]
    names = {*control_of(with_tokens(*added, AddedToken("<s0>", special=True))).names}
    assert {"<plain>", "<s0>", END} <= names
    assert not names & {*texts}
    assert control_of(object()).mark(END) == END, "without control tokens nothing is marked"


def test_the_templates_own_control_token_beside_a_text_stays_one() -> None:
    control = control_of()
    for text in ("a <", "<|im_", "x<|im_end|", "a", END):
        tokens = MarkedTokenizer(base_tokenizer(), control).encode(f"{control.mark(text)}{END}")
        assert tokens.count(base_tokenizer().convert_tokens_to_ids(END)) == 1, text


def test_what_is_marked_twice_is_as_if_once() -> None:
    control = control_of()
    for text in (END, f"a{END}", "<|im_", "end|>", "plain"):
        assert control.mark(control.mark(text)) == control.mark(text)


def test_a_token_whose_rest_is_one_too_is_spelled_letter_by_letter() -> None:
    added = [AddedToken(name, special=False, normalized=False) for name in ("<<x>>", "<x>>")]
    tokenizer = with_tokens(*added)
    tokens = ids("a<<x>>", tokenizer)
    assert tokenizer.decode(tokens) == "a<<x>>"
    assert not {tokenizer.convert_tokens_to_ids(str(one)) for one in added} & set(tokens)


def test_messages_with_nothing_in_them_stay_the_same_objects() -> None:
    function = ToolCall.FunctionBody(name="f", arguments='{"x" :1.0}')
    calls = Message(role="assistant", content="", tool_calls=[ToolCall(id="1", function=function)])
    for message in (calls, Message(role="user", content="a < b | c > d")):
        assert control_of().mark_message(message) is message


def test_a_backend_spells_as_the_tokenizer_does() -> None:
    control = control_of()
    backend = MarkedBackend(base_tokenizer().backend_tokenizer, control)
    text = f"a {END} b"
    assert backend.encode(control.mark(text), add_special_tokens=False).ids == ids(text)
