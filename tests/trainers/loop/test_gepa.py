"""``examples/gepa_prompt.py``: GEPA rewrites a prompt by the episodes of ``evert.rollout``."""

import runpy

from evert import ScriptedPolicy


def test_the_prompt_that_makes_the_model_right_is_found() -> None:
    """The policy answers with the number alone where the prompt asks for it."""

    def answer(prompt: str) -> str:
        one, two = prompt.rpartition("What is ")[2].partition("?")[0].split(" + ")
        total = int(one) + int(two)
        return f"{total}" if "Only the number" in prompt else f"It is {total}."

    asked = list[str]()

    def reflect(question: str) -> str:
        asked.append(question)
        return "```\nOnly the number.\n```"

    example = runpy.run_path("examples/gepa_prompt.py")
    found = example["optimise"](ScriptedPolicy(answer), reflect, 40)
    assert found.best_candidate == {"prompt": "Only the number."}
    assert found.val_aggregate_scores == [0.0, 1.0]
    assert "You are helpful." in asked[0]
    assert "It is " in asked[0]
    assert "and nothing else" in asked[0]
