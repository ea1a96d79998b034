"""Twenty Questions as a CrewAI ``Flow``: ask, answer, router, finish.

    ask -> answer -> router -> ask       until the noun is found or there are no more questions
                     router -> finish

The player and the answerer are CrewAI agents. The player's model is the policy, so evert takes over
calls to its name. The answerer's model is the knowledge base (a ``BaseLLM``) or a named chat model:

    ChatAgentEnv(TwentyQuestionsFlow(answerer="judge"), task, models={"judge": ...})
"""

import asyncio
import os
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from crewai import LLM, Agent, BaseLLM
from crewai.events.utils.console_formatter import set_suppress_console_output
from crewai.flow import Flow, listen, router, start
from crewai.tools import tool
from crewai.tools.tool_failure import ToolExecutionFailedError
from pydantic import BaseModel
from twenty_questions import Said, play

from evert.envs.twenty_questions.answerers import SYSTEM_PROMPT as ANSWERER_PROMPT
from evert.envs.twenty_questions.answerers import Answerer, shipped_answerer
from evert.envs.twenty_questions.game import NOTHING_ASKED, QuestionGame, Rules, Search, question_of
from evert.envs.twenty_questions.nouns import Noun
from evert.envs.twenty_questions.player import (
    PATIENCE,
    SEARCH_PROMPT,
    SYSTEM_PROMPT,
    look_up,
    report,
    turn_prompt,
)
from evert.envs.twenty_questions.search import SearchTool

os.environ.setdefault("CREWAI_DISABLE_TELEMETRY", "true")
os.environ.setdefault("CREWAI_DISABLE_VERSION_CHECK", "true")


@dataclass
class TwentyQuestionsFlow:
    """The game as an agent.

    Attributes:
        answerer: The answerer or the name of a frozen chat model (default: the knowledge base).
        search: The player's search tool (default: no search).
        rules: The rules of the game.
    """

    answerer: Answerer | str | None = None
    search: SearchTool | None = None
    rules: Rules = field(default_factory=Rules)

    def __call__(self, client, task):
        """Play one game; return 1.0 if the noun was found, else 0.0."""
        set_suppress_console_output(True)  # only affects this thread
        game = QuestionGame(Noun(**task), self.rules)
        flow = GameFlow(
            client=client,
            answerer=answerer_agent(self.answerer, game.noun),
            initial_state=State(game=game),
            max_method_calls=self.rules.max_questions,
        )
        tools = [] if self.search is None else [search_tool(self.search, flow)]
        flow.player = player_agent(client.model, tools, self.rules)
        return flow.kickoff()


agent = TwentyQuestionsFlow()
"""The game with default options, i.e. without search."""


# -- the flow ------------------------------------------------------------------------------------


class State(BaseModel):
    """The flow's state: the game, the player's conversation, and the current question."""

    game: QuestionGame
    messages: list[dict[str, Any]] = []
    question: str = ""
    searches: list[Search] = []


class GameFlow(Flow[State]):
    """One game."""

    client: Any
    answerer: Agent
    player: Agent | None = None

    @start("next question")
    async def ask(self):
        """Get the player's next question."""
        state = self.state
        state.question, state.searches = "", []
        state.messages.append({"role": "user", "content": turn_prompt(state.game, "full")})
        try:
            output = await self.player.kickoff_async(state.messages)
        except (ValueError, ToolExecutionFailedError) as error:
            if not asked_nothing(error):
                raise
            return
        state.question = question_of(output.raw)
        state.messages = conversation(output)

    @listen(ask)
    async def answer(self):
        """Answer the question. The answer is n/a if the reply contains no question."""
        game, question = self.state.game, self.state.question
        answer = NOTHING_ASKED
        if question:
            output = await self.answerer.kickoff_async(f"Question: {question}", Said)
            heard, knows = output.pydantic, isinstance(self.answerer.llm, KnowingModel)
            answer = heard.trusted() if knows else heard.checked(game.noun, question)
        game.record(question, answer, tuple(self.state.searches))
        self.client.log(question=question, answer=answer.yes_or_no, reason=answer.brief_reason)

    @router(answer)
    def route(self):
        """Continue with the next question, or finish."""
        return "over" if self.state.game.over else "next question"

    @listen("over")
    def finish(self):
        """Log the game and return the score."""
        return report(self.client, self.state.game)


def asked_nothing(error):
    """Return whether CrewAI failed because of an empty reply or five identical searches."""
    return isinstance(error, ToolExecutionFailedError) or "None or empty" in str(error)


def conversation(output):
    """Return the player's conversation without the system prompt, which CrewAI adds itself."""
    messages = output.messages[1:]
    if messages[-1]["role"] == "assistant":  # with tools, CrewAI strips whitespace from the reply
        messages.pop()
    return [*messages, {"role": "assistant", "content": output.raw}]


# -- the crew ------------------------------------------------------------------------------------


def player_agent(model, tools, rules):
    """Return the player agent; ``model`` is the policy's name."""
    return Agent(
        role="Player",
        goal="Find the secret answer in as few questions as you can.",
        backstory=SYSTEM_PROMPT + (SEARCH_PROMPT if tools else ""),
        tools=tools,
        llm=LLM(model, provider="openai", api_key="unused"),
        max_iter=rules.max_searches + PATIENCE,
        respect_context_window=False,  # otherwise the policy is also asked for summaries
    )


def search_tool(search, flow):
    """Return the player's tool. CrewAI limits its uses per kickoff, i.e. per question."""
    rules = flow.state.game.rules

    @tool("search", max_usage_count=rules.max_searches)
    async def find(query: str) -> str:
        """Look something up, for example which animals can fly."""
        return await look_up(search, query, flow.state.searches, rules)

    return find


def answerer_agent(answerer, noun):
    """Return the answerer agent. Only its prompt contains the noun."""
    if isinstance(answerer, str):
        model = LLM(answerer, provider="openai", api_key="unused")
    else:
        model = KnowingModel(model="facts", answerer=answerer or shipped_answerer(), noun=noun)
    return Agent(
        role="Answerer",
        goal="Answer the player's question truthfully.",
        backstory=ANSWERER_PROMPT.format(answer=noun.answer, category=noun.category),
        llm=model,
        respect_context_window=False,
    )


class KnowingModel(BaseLLM):
    """An ``Answerer`` as a CrewAI model."""

    answerer: Any
    noun: Any

    def call(self, messages, *args, **options):
        """Answer the question in the last message."""
        question = re.search("Question: (.*)", messages[-1]["content"])[1]
        return Said(**asdict(asyncio.run(self.answerer.answer(self.noun, question))))


if __name__ == "__main__":
    play(agent)
