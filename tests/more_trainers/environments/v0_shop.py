"""A tool-using environment for verifiers before 0.4."""

import verifiers as vf
from datasets import Dataset

PRICES = {"apple": 3, "pear": 5}


def price(item: str) -> str:
    """The price of an item."""
    return f"costs {PRICES[item]}"


def right(completion, answer):
    return float((completion[-1].content or "").strip() == answer)


def load_environment():
    rows = [
        {
            "question": f"What do {number} of {item} cost? Ask for the price.",
            "answer": str(PRICES[item] * number),
        }
        for number in range(40)
        for item in [("apple", "pear")[number % 2]]
    ]
    return vf.ToolEnv(
        dataset=Dataset.from_list(rows), tools=[price], rubric=vf.Rubric(funcs=[right]), max_turns=4
    )
