"""The same game in other styles of the same frameworks: streaming, teams, flows, threads.

``tests/bridge/clients`` covers streaming with the SDKs themselves. Each function is an agent, like
those in examples/. Each imports its own framework, because no environment has them all.
``OTHER_WAYS`` in conftest.py says which agents run in which environment.
"""

import asyncio
import json

from game import TURNS, Game

NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
TOOL = {"name": "check_guess", "description": "Check a guess."}
CHAT_TOOL = {"type": "function", "function": {**TOOL, "parameters": NUMBER}}


def checking(game):
    """Return the tool of a game."""

    def check_guess(number: int) -> str:
        """Check a guess."""
        return game.check(number)

    return check_guess


# -- LangChain and LangGraph ---------------------------------------------------------------------


def _chat_openai(client):
    import openai
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        model=client.model,
        api_key="unused",
        base_url=client.transport.base_url,
        http_async_client=openai.DefaultAsyncHttpxClient(transport=client.transport),
        http_client=openai.DefaultHttpxClient(transport=client.transport),
        max_retries=0,
    )


async def langchain_stream(client, task):
    """Streaming messages out of the graph makes the model stream, too."""
    from langchain.agents import create_agent
    from langchain_core.tools import tool

    game = Game(task)
    check_guess = tool(checking(game))

    graph = create_agent(_chat_openai(client), [check_guess])
    async for _ in graph.astream(
        {"messages": [{"role": "user", "content": game.rules}]},
        {"recursion_limit": 2 * TURNS + 2},
        stream_mode="messages",
    ):
        pass
    return game.reward


async def langgraph_blocking_node(client, task):
    """Blocking nodes of an async graph run in the default executor of the event loop."""
    from langchain_core.tools import tool
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    game = Game(task)
    check_guess = tool(checking(game))

    model = _chat_openai(client).bind_tools([check_guess])
    graph = StateGraph(MessagesState)
    graph.add_node("player", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([check_guess]))
    graph.add_edge(START, "player")
    graph.add_conditional_edges("player", tools_condition)
    graph.add_edge("tools", "player")
    await graph.compile().ainvoke(
        {"messages": [{"role": "user", "content": game.rules}]}, {"recursion_limit": 2 * TURNS + 2}
    )
    return game.reward


# -- other frameworks with openai 3 --------------------------------------------------------------


async def openai_agents_stream(client, task):
    """``Runner.run_streamed`` with chat completions."""
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool

    game = Game(task)
    check_guess = function_tool(checking(game))

    model = OpenAIChatCompletionsModel(model=client.model, openai_client=client.openai)
    player = Agent(name="Player", tools=[check_guess], model=model)
    result = Runner.run_streamed(player, game.rules, max_turns=TURNS + 1)
    async for _ in result.stream_events():
        pass
    return game.reward


async def _google_adk(model, game):
    """Play with ADK's own runner, which streams."""
    from google.adk.agents import LlmAgent, RunConfig
    from google.adk.agents.run_config import StreamingMode
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    player = LlmAgent(name="player", tools=[checking(game)], model=model)
    runner = InMemoryRunner(player, app_name="a")
    session = await runner.session_service.create_session(app_name="a", user_id="user")
    async for _ in runner.run_async(
        user_id="user",
        session_id=session.id,
        new_message=types.UserContent(game.rules),
        run_config=RunConfig(max_llm_calls=TURNS + 1, streaming_mode=StreamingMode.SSE),
    ):
        pass
    return game.reward


async def google_adk_taken_over(client, task):
    """Streaming from Gemini with a client that ADK creates itself."""
    from google.adk.models import Gemini

    model = Gemini(model=client.model, client_kwargs={"api_key": "unused"})
    return await _google_adk(model, Game(task))


async def google_adk_stream(client, task):
    """Streamed chat completions."""
    from google.adk.integrations.openai import OpenAILlm

    return await _google_adk(OpenAILlm(model=client.model, client=client.openai), Game(task))


async def microsoft_stream(client, task):
    """Streamed responses."""
    from agent_framework import Agent
    from agent_framework.openai import OpenAIChatClient

    game = Game(task)
    chat = OpenAIChatClient(
        model=client.model,
        async_client=client.openai,
        function_invocation_configuration={"max_iterations": TURNS},
    )
    player = Agent(chat, tools=[checking(game)])
    async for _ in player.run(game.rules, stream=True):
        pass
    return game.reward


async def pydantic_ai_responses_stream(client, task):
    """Streamed responses."""
    from pydantic_ai import Agent, UsageLimits
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    game = Game(task)
    model = OpenAIResponsesModel(client.model, provider=OpenAIProvider(openai_client=client.openai))
    player = Agent(model)
    player.tool_plain(checking(game))

    async with player.run_stream(
        game.rules, usage_limits=UsageLimits(request_limit=TURNS + 1)
    ) as result:
        await result.get_output()
    return game.reward


# -- AutoGen and smolagents ----------------------------------------------------------------------


async def autogen_team(client, task):
    """A team of one agent that streams. Its actors run in their own asyncio tasks."""
    import openai
    from autogen_agentchat.agents import AssistantAgent
    from autogen_agentchat.teams import RoundRobinGroupChat
    from autogen_core.models import ModelFamily
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    game = Game(task)

    async def check_guess(number: int) -> str:
        """Check a guess."""
        return game.check(number)

    able = dict.fromkeys(["function_calling", "json_output", "structured_output"], True)
    model = OpenAIChatCompletionClient(
        model=client.model,
        api_key="unused",
        base_url=client.transport.base_url,
        model_info={**able, "vision": False, "family": ModelFamily.UNKNOWN},
        http_client=openai.DefaultAsyncHttpxClient(transport=client.transport),
        max_retries=0,
    )
    player = AssistantAgent(
        "player", model, tools=[check_guess], max_tool_iterations=TURNS, model_client_stream=True
    )
    await RoundRobinGroupChat([player], max_turns=1).run(task=game.rules)
    return game.reward


async def smolagents_stream(client, task):
    """A blocking, streaming framework inside an async agent, run with ``asyncio.to_thread``."""
    import openai
    from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool

    game = Game(task)

    @tool
    def check_guess(number: int) -> str:
        """Check a guess.

        Args:
            number: The guess.
        """
        return game.check(number)

    http_client = openai.DefaultHttpxClient(transport=client.transport)
    options = {"http_client": http_client, "max_retries": 0}
    address = {"api_base": client.transport.base_url, "api_key": "unused"}
    model = OpenAIModel(client.model, **address, client_kwargs=options)
    player = ToolCallingAgent(
        [check_guess], model, max_steps=TURNS + 1, verbosity_level=LogLevel.OFF, stream_outputs=True
    )
    await asyncio.to_thread(player.run, game.rules)
    return game.reward


# -- other frameworks with openai 2 --------------------------------------------------------------


async def litellm_messages_stream(client, task):
    """LiteLLM picks Anthropic's streaming API from the model name; evert intercepts the calls."""
    import litellm

    game = Game(task)
    messages = [{"role": "user", "content": game.rules}]
    for _ in range(TURNS + 1):
        chunks = await litellm.acompletion(
            model=f"anthropic/{client.model}",
            messages=messages,
            tools=[CHAT_TOOL],
            api_key="unused",
            max_tokens=256,
            stream=True,
        )
        seen = [chunk async for chunk in chunks]
        message = litellm.stream_chunk_builder(seen, messages=messages).choices[0].message
        if not message.tool_calls:
            break
        messages.append(message)
        for call in message.tool_calls:
            number = json.loads(call.function.arguments)["number"]
            told = {"role": "tool", "tool_call_id": call.id, "content": game.check(int(number))}
            messages.append(told)
    return game.reward


async def crewai_stream(client, task):
    """``akickoff`` makes blocking, streaming calls in the event loop's default executor."""
    from crewai import LLM, Agent
    from crewai.tools import tool

    game = Game(task)
    check_guess = tool("check_guess")(checking(game))

    address = {"base_url": client.transport.base_url, "api_key": "unused"}
    llm = LLM(client.model, provider="openai", stream=True, **address)
    who = {"role": "Player", "goal": "Find the number.", "backstory": "You like to guess."}
    player = Agent(**who, tools=[check_guess], llm=llm, max_iter=TURNS + 1)
    await player.akickoff(game.rules)
    return game.reward


def _react(game, lm):
    """Return DSPy's player and the context in which it plays."""
    import dspy

    player = dspy.ReAct("rules -> number: int", tools=[checking(game)], max_iters=TURNS)
    return player, dspy.context(lm=lm, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False))


def dspy_in_a_thread(client, task):
    """A blocking call to a module, with DSPy's other engine, LiteLLM."""
    import dspy

    game, options = Game(task), {"api_key": "unused", "cache": False, "num_retries": 0}
    player, playing = _react(game, dspy.LM(f"openai/{client.model}", engine="litellm", **options))
    with playing:
        player(rules=game.rules)
    return game.reward


def dspy_own_engine_in_a_thread(client, task):
    """A blocking call to a module with DSPy's own engine, as an unchanged program makes it."""
    import dspy

    game = Game(task)
    player, _ = _react(game, None)
    with dspy.context(lm=dspy.LM("openai/policy", api_key="unused", cache=False)):
        player(rules=game.rules)
    return game.reward


async def dspy_streamed(client, task):
    """Streaming with DSPy's own engine, whose routers use the rollout's transport."""
    import dspy
    from dspy.clients.engines.lm15_engine import AsyncLM15Engine, LM15Engine
    from dspy.lm15 import RouterConfig

    game = Game(task)
    config = RouterConfig(transport=client.transport, env={"OPENAI_API_KEY": "unused"})
    engines = {"engine": LM15Engine(config), "async_engine": AsyncLM15Engine(config)}
    player, playing = _react(game, dspy.LM("openai/gpt-5.2", cache=False, num_retries=0, **engines))
    with playing:
        listener = dspy.streaming.StreamListener("next_thought", allow_reuse=True)
        stream = dspy.streamify(player, stream_listeners=[listener], is_async_program=True)
        pieces = [piece async for piece in stream(rules=game.rules)]
    assert any(isinstance(piece, dspy.streaming.StreamResponse) for piece in pieces)
    return game.reward


async def dspy_over_loopback(client, task):
    """DSPy's own engine calls the rollout by its address, as from another process."""
    import dspy

    game, there = Game(task), {"api_base": client.base_url, "api_key": client.api_key}
    lm = dspy.LM(f"openai/{client.model}", cache=False, num_retries=0, **there)
    player, playing = _react(game, lm)
    with playing:
        await player.acall(rules=game.rules)
    return game.reward
