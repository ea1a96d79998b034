"""Texts without control tokens are tokenised exactly as the renderer alone would tokenise them.

1. This holds for code, markup, tables and non-Latin scripts in every slot of every request.
2. It also holds for random texts built from pieces of control tokens, unless the renderer itself
would turn them into a control token. evert never does.
"""

import itertools
from collections import defaultdict

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.bridge.tokens.flagged_tokenizers import CLASSES, RENDERERS, literals, tokens_of
from tests.bridge.tokens.injection_matrix import Matrix
from tests.bridge.tokens.request_shapes import (
    ONCE,
    SHAPES,
    filled,
    plain_prompt_of,
    prompt_of,
    slots,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Tool message missing"),
    pytest.mark.filterwarnings("ignore:use_system_prompt=True"),
]

INNOCENT = [
    "if a < b and c > d or (e << 2) | (f >> 1): x <<= y",
    "<div class='a'>\n  <p>1 &lt; 2</p>\n</div>",
    "| a | b |\n|---|---|\n| <b>1</b> | 2 |",
    "cat x | grep y > z 2>&1 <<EOF",
    "template<typename T> auto f(T&& t) -> decltype(t)",
    "< ",
    "> and then",
    "ends with <",
    "ends with <|",
    "|> begins",
    "end|> and </",
    "[a] [INS [gMA K] [",
    "｜ ▁ ｜> <｜",
    "你好世界。「こんにちは」 안녕하세요",
    "👩\u200d👩\u200d👧 e\u0301 \u00e9 \u212a ﬁ",
    "a\tb\r\nc\u00a0d\u2003e",
    '{"a": "\\u003c", "b": [1, 2]} \\ " \' `',
    "think tool_call im_end user system s sop /no think",
    "  margins  ",
]

WRITTEN_ANEW = ("calls in calls", "escaped twice", "a string")
"""Shapes whose arguments contain JSON inside a JSON string. Marking the inner string changes how it
is escaped. (Kimi's "schema" is also skipped: its templates sort parameters by name, and a mark at
the end of a name can change the order.)"""


FAMILIES: dict[str, list[str]] = defaultdict(list)
for _name in RENDERERS:
    if not tokens_of(_name).fold:
        FAMILIES[_name.split("_")[0]].append(_name)


@pytest.mark.parametrize("family", FAMILIES)
def test_harmless_texts_are_tokenised_as_by_the_renderer(family: str) -> None:
    different = []
    for name, (number, (dialect, shape)) in itertools.product(FAMILIES[family], enumerate(ONCE)):
        if shape in WRITTEN_ANEW or (shape == "schema" and name.startswith("kimi")):
            continue
        texts = [INNOCENT[(number + step) % len(INNOCENT)] for step in (0, 7)]
        every = slots(SHAPES[dialect][shape])
        for text in texts:
            body = filled(SHAPES[dialect][shape], dict.fromkeys(every, text))
            if prompt_of(name, dialect, body) != plain_prompt_of(name, dialect, body):
                different.append(f"{name} | {dialect} | {shape} | {text!r}")
    assert not different, "\n".join(different)


@st.composite
def pieces(draw: st.DrawFn, name: str) -> str:
    """Draw a text made of pieces of literals, markup and whitespace."""
    texts = [*literals(name)]
    literal = st.sampled_from(texts)
    piece = (
        literal.flatmap(lambda one: st.integers(1, len(one)).map(lambda cut: one[:cut]))
        | literal.flatmap(lambda one: st.integers(0, len(one) - 1).map(lambda cut: one[cut:]))
        | st.sampled_from(
            [" ", "\n", "<", ">", "|", "a", "<think>", "</think>", "\\", '"', "\u0338"]
        )
    )
    return "".join(draw(st.lists(piece, min_size=1, max_size=6)))


@pytest.mark.parametrize("name", CLASSES)
@settings(
    max_examples=30,
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_a_random_text_does_not_become_a_control_token(name: str, data: st.DataObject) -> None:
    dialect, shape = data.draw(st.sampled_from(ONCE))
    body = SHAPES[dialect][shape]
    every = slots(body)
    texts = {slot: data.draw(pieces(name)) for slot in data.draw(st.permutations(every))[:4]}
    prompt, plain = (of(name, dialect, filled(body, texts)) for of in (prompt_of, plain_prompt_of))
    letters = prompt_of(name, dialect, filled(body, dict.fromkeys(every, "a")))
    if prompt is None or letters is None or plain is None:
        return
    matrix = Matrix(name)
    expected = matrix.control(letters)
    assert matrix.control(prompt) == expected
    joined = "".join(texts.values())
    differs = shape in (*WRITTEN_ANEW, "schema") or tokens_of(name).fold
    if not differs and not any(literal in joined for literal in literals(name)):
        assert prompt == plain or matrix.control(plain) != expected
