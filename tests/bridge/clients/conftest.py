"""Policy replies and assertions shared by the SDK tests."""

import pytest
import tinker_cookbook.renderers as cookbook
from tests.kit import assert_extends, calling
from tinker_cookbook.renderers.qwen3 import Qwen3Renderer
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.types import Trajectory

from evert.bridge.tokens.bases import base_tokenizer

LONG = "The quick brown fox jumps over the lazy dog, twice — and the dog says: “gut!” 🐕"
THOUGHT = "<think>\nHm, let me think about all of this.\n</think>\n\n"
ONE_CALL = calling("add", x=1, why="because it has to be long enough for two deltas")
SAID = {
    "text": LONG,
    "nothing": "",
    "reasoning": f"{THOUGHT}So be it.",
    "one call": ONE_CALL,
    "text and call": f"Let me see.\n{ONE_CALL}",
    "parallel calls": f"{calling('add', x=1)}\n{calling('look', x=2)}\n{calling('add')}",
    "reasoning and calls": f"{THOUGHT}{calling('add', x=1)}\n{calling('look', x=2)}",
}


@pytest.fixture(params=["instruct", "thinking"])
def renderer(request: pytest.FixtureRequest) -> cookbook.Renderer | None:
    """The default renderer, and one that keeps the thinking in the history."""
    if request.param == "instruct":
        return None
    return Qwen3Renderer(base_tokenizer(), strip_thinking_from_history=False)


ODD = calling("look", q="ü\n\"'\\ 🐕", x=[1, {"y": None}], z=1.50)
CONVERSATION = [LONG, ONE_CALL, ONE_CALL, "Well.", ODD, "", calling("look"), "  Bye.\n"]
"""The policy's reply in each turn. The conversation must preserve their exact tokens."""


def assert_one_lineage(trajectory: Trajectory, *, drift: str | None = None) -> None:
    """Assert that the trajectory becomes a single datum with exactly the sampled tokens."""
    assert {t.logs["drift"] for t in trajectory.transitions if "drift" in t.logs} <= {drift}
    assert trajectory.transitions[-1].metrics["lineages"] == 1
    assert_extends(trajectory)
    [datum] = trajectory_to_data(trajectory, 1.0)
    last = trajectory.transitions[-1]
    assert datum.model_input.length == last.ob.length + len(last.ac.tokens) - 1
