"""Multiplication with a tool, without a warm-up, after the example in TRL's issue 5366.

    python benchmarks/experiments.py --only multiply

The agent is ``calculator.py``'s. The reward is 1 if the answer has the product, else 0: the tool's
result alone earns nothing.
"""

from calculator import questions, score, solve

SYSTEM = {
    "role": "system",
    "content": "You are a careful calculator. You must call the tool. Then give its result.",
}
TEST = [*questions(0, 20, "*")]
TRAIN = [task for task in questions(1, 500, "*") if task not in TEST]


async def agent(client, task):
    """Ask for a product; the reward is 1 if the answer has it."""
    answer, results = await solve(task["question"], SYSTEM)
    client.metric("called", float(bool(results)))
    return float(score(answer, results, task["answer"]) == 1)
