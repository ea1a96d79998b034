"""LangChain and LangGraph: make both HTTP clients of ``ChatOpenAI`` use ``client.transport``."""

import openai
from game import TURNS, Game, play
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


async def agent(client, task):
    """Play the game with a LangGraph agent that has one tool."""
    game = Game(task)

    @tool
    def check_guess(number: int) -> str:
        """Check a guess."""
        return game.check(number)

    model = ChatOpenAI(
        model=client.model,
        api_key="unused",
        base_url=client.transport.base_url,
        http_async_client=openai.DefaultAsyncHttpxClient(transport=client.transport),
        http_client=openai.DefaultHttpxClient(transport=client.transport),
        max_retries=0,
    )
    graph = create_agent(model, [check_guess])
    await graph.ainvoke(
        {"messages": [{"role": "user", "content": game.rules}]},
        {"recursion_limit": 2 * TURNS + 2},  # each model call and each tool call is a step
    )
    return game.reward


if __name__ == "__main__":
    play(agent)
