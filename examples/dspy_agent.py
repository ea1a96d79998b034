"""DSPy. evert takes over calls to the policy's model name, so no client is needed."""

import json
import os

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # don't download prices

import dspy
from game import TURNS, Game, next_guess, play


async def agent(client, task):
    """Play the game with a ``ReAct`` module and one tool. Each prompt repeats all steps so far."""
    game = Game(task)

    def check_guess(number: int) -> str:
        """Check a guess."""
        return game.check(number)

    # With a cache, later episodes would reuse the replies from this one.
    lm = dspy.LM(f"openai/{client.model}", api_key="unused", cache=False, num_retries=0)
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        player = dspy.ReAct("rules -> number: int", tools=[check_guess], max_iters=TURNS)
        await player.acall(rules=game.rules)
    return game.reward


def model(prompt):
    """Reply with the fields that DSPy asks for."""
    if "next_tool_name" not in prompt:
        return fields(reasoning="The guesses say so.", number=0)
    number = next_guess(prompt)
    if number is None:
        return fields(next_thought="Found it.", next_tool_name="finish", next_tool_args="{}")
    arguments = json.dumps({"number": number})
    return fields(next_thought="Bisect.", next_tool_name="check_guess", next_tool_args=arguments)


def fields(**values):
    """Return a reply in DSPy's format."""
    written = [f"[[ ## {name} ## ]]\n{value}\n" for name, value in values.items()]
    return "\n".join([*written, "[[ ## completed ## ]]"])


if __name__ == "__main__":
    play(agent, model)
