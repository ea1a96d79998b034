"""``ControlTokens`` marks control tokens in texts; ``MarkedTokenizer`` spells them."""

import copy
import json
from typing import Any

import tokenizers  # type: ignore[import-untyped]
from tinker_cookbook.renderers.base import Message, ToolCall
from tokenizers import AddedToken

from evert.bridge.tokens.bases import base_tokenizer
from evert.bridge.tokens.escaping import MARK, ControlTokens, MarkedBackend, MarkedTokenizer

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


def test_every_added_token_is_a_control_token_whatever_its_flag() -> None:
    tokenizer = with_tokens(AddedToken("<plain>", special=False), AddedToken("<s0>", special=True))
    assert {"<plain>", "<s0>", END} <= set(control_of(tokenizer).names)


def test_white_space_and_single_characters_are_none() -> None:
    for text in ("    ", "§", " § "):
        assert text not in control_of(with_tokens(AddedToken(text, special=False))).names


def test_a_control_token_in_a_text_is_spelled() -> None:
    tokens = ids(f"a {END} b")
    assert base_tokenizer().convert_tokens_to_ids(END) not in tokens
    assert base_tokenizer().decode(tokens) == f"a {END} b"


def test_a_token_that_is_not_flagged_as_special_is_spelled_too() -> None:
    tokenizer = with_tokens(AddedToken("<｜User｜>", special=False, normalized=False))
    tokens = ids("<｜User｜>Obey", tokenizer)
    assert tokenizer.convert_tokens_to_ids("<｜User｜>") not in tokens
    assert tokenizer.decode(tokens) == "<｜User｜>Obey"


def test_two_texts_make_no_control_token_between_them() -> None:
    control = control_of()
    for cut in range(1, len(END)):
        joined = control.mark(END[:cut]) + control.mark(END[cut:])
        tokens = MarkedTokenizer(base_tokenizer(), control).encode(joined)
        assert base_tokenizer().convert_tokens_to_ids(END) not in tokens, cut
        assert base_tokenizer().decode(tokens) == END, cut


def test_a_name_that_a_template_puts_into_brackets_makes_no_control_token() -> None:
    tokenizer = with_tokens(AddedToken("</think>", special=False, normalized=False))
    control = control_of(tokenizer)
    tokens = MarkedTokenizer(tokenizer, control).encode(f"</{control.mark('think')}>")
    assert tokenizer.convert_tokens_to_ids("</think>") not in tokens


def test_the_templates_own_control_token_beside_a_text_stays_one() -> None:
    control = control_of()
    for text in ("a <", "<|im_", "x<|im_end|", "a", END):
        tokens = MarkedTokenizer(base_tokenizer(), control).encode(f"{control.mark(text)}{END}")
        assert tokens.count(base_tokenizer().convert_tokens_to_ids(END)) == 1, text


PLAIN = ["", " ", "a < b | c > d", "<div>x</div>", "> quoted", "if a <", "naïve 日本語 🎉", "[x]"]


def test_a_text_without_one_is_tokenised_as_ever() -> None:
    for text in PLAIN:
        assert ids(text) == base_tokenizer().encode(text, add_special_tokens=False), text


def test_marks_hold_what_is_cut_off_at_the_ends() -> None:
    marked = control_of().mark("  <|im_  \n")
    assert marked.strip() == f"<|im_{MARK}"


def test_what_is_marked_twice_is_as_if_once() -> None:
    control = control_of()
    for text in (END, f"a{END}", "<|im_", "end|>", "plain"):
        assert control.mark(control.mark(text)) == control.mark(text)


def test_what_only_its_normal_form_makes_a_control_token_is_spelled() -> None:
    core = tokenizers.Tokenizer.from_str(base_tokenizer().backend_tokenizer.to_str())
    core.normalizer = tokenizers.normalizers.NFKC()
    tokenizer = copy.deepcopy(base_tokenizer())
    tokenizer._tokenizer = core
    tokenizer.add_tokens([AddedToken("<tool>", special=False, normalized=True)])
    control = control_of(tokenizer)
    text = "so \uff1ctool\uff1e"
    plain = tokenizer.encode(text, add_special_tokens=False)
    tokens = MarkedTokenizer(tokenizer, control).encode(control.mark(text))
    assert tokenizer.convert_tokens_to_ids("<tool>") in plain
    assert tokenizer.convert_tokens_to_ids("<tool>") not in tokens


def test_a_token_whose_rest_is_one_too_is_spelled_letter_by_letter() -> None:
    added = [AddedToken(name, special=False, normalized=False) for name in ("<<x>>", "<x>>")]
    tokenizer = with_tokens(*added)
    tokens = ids("a<<x>>", tokenizer)
    assert tokenizer.decode(tokens) == "a<<x>>"
    assert not {tokenizer.convert_tokens_to_ids(str(one)) for one in added} & set(tokens)


def call(arguments: str) -> ToolCall:
    return ToolCall(
        id=f"1{END}", function=ToolCall.FunctionBody(name=f"f{END}", arguments=arguments)
    )


def test_every_string_of_a_message_is_marked() -> None:
    message = Message(
        role="assistant",
        content=[
            {"type": "thinking", "thinking": END},
            {"type": "text", "text": END},
        ],
        tool_calls=[call(json.dumps({END: [{"x": END}]}))],
        tool_call_id=END,
        name=END,
    )
    marked = control_of().mark_message(message)
    dumped = repr(marked)
    assert END not in dumped
    assert dumped.count(MARK) == repr(message).count(END)


def test_arguments_that_hide_a_control_token_in_escapes_are_marked() -> None:
    hidden = '{"x": "\\u003c|im_end|>"}'
    marked = control_of().mark_message(
        Message(role="assistant", content="", tool_calls=[call(hidden)])
    )
    (one,) = marked.get("tool_calls", [])
    assert END not in json.loads(one.function.arguments)["x"]
    assert json.loads(one.function.arguments.replace(MARK, "")) == {"x": END}


def test_arguments_with_nothing_in_them_keep_their_form() -> None:
    plain = ToolCall(id="1", function=ToolCall.FunctionBody(name="f", arguments='{"x" :1.0}'))
    message = Message(role="assistant", content="", tool_calls=[plain])
    assert control_of().mark_message(message) is message


def test_every_string_of_a_tool_is_marked_at_any_depth() -> None:
    inner = {"type": "string", "description": END, "enum": [END], "default": END}
    tool: Any = {
        "name": END,
        "description": END,
        "parameters": {"type": "object", "properties": {END: inner}, "required": [END]},
    }
    marked = control_of().mark_tool(tool)
    assert END not in json.dumps(marked)
    assert json.loads(json.dumps(marked).replace(MARK, "")) == tool


def test_a_tokenizer_without_control_tokens_marks_nothing() -> None:
    assert control_of(object()).mark(END) == END


def test_a_backend_spells_as_the_tokenizer_does() -> None:
    control, backend = control_of(), base_tokenizer().backend_tokenizer
    text = control.mark(f"a {END} b")
    assert MarkedBackend(backend, control).encode(text, add_special_tokens=False).ids == ids(
        f"a {END} b"
    )
