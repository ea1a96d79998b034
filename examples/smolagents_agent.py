"""smolagents, a synchronous framework: its model's HTTP client uses ``client.transport``."""

import openai
from game import TURNS, Game, next_guess, play, tool_call
from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool


def agent(client, task):
    """Play the game with a ``ToolCallingAgent`` that has one tool. evert runs it in a thread."""
    game = Game(task)

    @tool
    def check_guess(number: int) -> str:
        """Check a guess.

        Args:
            number: The guess.
        """
        return game.check(number)

    model = OpenAIModel(
        client.model,
        api_base=client.transport.base_url,
        api_key="unused",
        client_kwargs={
            "http_client": openai.DefaultHttpxClient(transport=client.transport),
            "max_retries": 0,
        },
    )
    player = ToolCallingAgent(
        [check_guess], model, max_steps=TURNS + 1, verbosity_level=LogLevel.OFF
    )
    player.run(game.rules)
    return game.reward


def model(prompt):
    """Act as a model. The framework requires a tool call for the final answer, too."""
    number = next_guess(prompt)
    if number is None:
        return tool_call("final_answer", answer="Found it.")
    return tool_call("check_guess", number=number)


if __name__ == "__main__":
    play(agent, model)
