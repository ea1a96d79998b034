"""The first difference between two conversations, as errors and drift logs describe it."""

from typing import Any

import pytest
from tests.kit import user

from evert.bridge.conversations.differences import in_messages

CAT, DOG = ({"type": "image_url", "image_url": {"url": f"{name}.png"}} for name in ("cat", "dog"))


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


@pytest.mark.parametrize(
    ("before", "after", "difference"),
    [
        ("Hi", [text("Hi")], ""),
        (" Hi there\n", [text("Hi "), text("there")], ""),
        ("", None, ""),
        ("Hi", [text("Ha")], "messages[0].content of the user was 'Hi' and is now 'Ha'."),
        (
            [text("Hi"), CAT], [text("Hi"), DOG],
            "messages[0].content[1].image_url.url of the user was 'cat.png' and is now 'dog.png'.",
        ),
        (
            [CAT], [CAT, "!"],
            """messages[0].content of the user was …'e_url", "image_url": {"url": "cat.png"}}]' """
            """and is now …'e_url", "image_url": {"url": "cat.png"}}, "!"]'.""",
        ),
    ],
)  # fmt: skip
def test_equal_texts_do_not_differ_and_a_changed_image_does(
    before: Any, after: Any, difference: str
) -> None:
    assert in_messages([user(before)], [user(after)]) == difference
