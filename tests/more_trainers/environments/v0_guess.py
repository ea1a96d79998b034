"""A multi-turn environment for verifiers before 0.4."""

import re

import verifiers as vf
from datasets import Dataset


class Guesses(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **options):
        guess, number = int(re.findall(r"\d", f"0{messages[-1].content}")[-1]), int(state["answer"])
        hint = "Too low." if guess < number else "Too high."
        if guess == number:
            state["found"] = True
            state["final_env_response"] = hint = "Right."
        return [{"role": "user", "content": hint}]


def found(state):
    return float(state.get("found", False)) / len(state["trajectory"])


def words(completion):
    return float(sum(len(m.content.split()) for m in completion if m.role == "assistant"))


def load_environment(count=40, held_out=0, max_turns=3):
    rows = [
        {"question": f"Game {n}: I think of 1, 2 or 3. Guess.", "answer": str(n % 3 + 1)}
        for n in range(count + held_out)
    ]
    return Guesses(
        dataset=Dataset.from_list(rows[:count]),
        eval_dataset=Dataset.from_list(rows[count:]) if held_out else None,
        rubric=vf.Rubric(funcs=[found, words], weights=[1.0, 0.0]),
        max_turns=max_turns,
    )
