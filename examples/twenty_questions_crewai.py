"""Twenty Questions as a CrewAI ``Flow``: ask, answer, router, finish.

    ask -> answer -> router -> ask       until the noun is found, or the questions are used up
                     router -> finish

Player and answerer are crew agents. The player's model is the policy: calls to its name are taken
over. The answerer's is the knowledge base, as a model of CrewAI's; or a chat model, by its name:

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
from evert.envs.twenty_questions.game import NOTHING_ASKED, Game, Rules, Search, question_of
from evert.envs.twenty_questions.nouns import Noun
from evert.envs.twenty_questions.player import (
    PATIENCE,
    SEARCH_PROMPT,
    SYSTEM_PROMPT,
    look_up,
    report,
    said,
)
from evert.envs.twenty_questions.search import SearchTool

os.environ.setdefault("CREWAI_DISABLE_TELEMETRY", "true")
os.environ.setdefault("CREWAI_DISABLE_VERSION_CHECK", "true")


@dataclass
class TwentyQuestionsFlow:
    """The game as an agent; the parts are chosen when it is made.

    Attributes:
        answerer: Who answers, or the name of a frozen chat model that does; None for the facts that
            ship with evert.
        search: What the player may look things up in; None: it has no tool.
        rules: What the game allows.
    """

    answerer: Answerer | str | None = None
    search: SearchTool | None = None
    rules: Rules = field(default_factory=Rules)

    def __call__(self, client, task):
        """Play one game; 1.0 if the noun was found, else 0.0."""
        set_suppress_console_output(True)  # in this game's thread, not elsewhere
        game = Game(Noun(**task), self.rules)
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
"""The game as it comes, without search."""


# -- the flow ------------------------------------------------------------------------------------


class State(BaseModel):
    """What the steps share: the game, the player's conversation, and the question in play."""

    game: Game
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
        """The player's question: the first one, and every other."""
        state = self.state
        state.question, state.searches = "", []
        state.messages.append({"role": "user", "content": said(state.game, "full")})
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
        """The answer; a player that has not asked anything is told n/a."""
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
        """To the next question, or to the end."""
        return "over" if self.state.game.over else "next question"

    @listen("over")
    def finish(self):
        """The score, and the game in the logs."""
        return report(self.client, self.state.game)


def asked_nothing(error):
    """Whether CrewAI's error is only about an empty reply, or about one search made five times."""
    return isinstance(error, ToolExecutionFailedError) or "None or empty" in str(error)


def conversation(output):
    """What the player has seen and said so far; the crew agent adds its system prompt itself."""
    messages = output.messages[1:]
    if messages[-1]["role"] == "assistant":  # the reply, where there are tools, but stripped
        messages.pop()
    return [*messages, {"role": "assistant", "content": output.raw}]


# -- the crew ------------------------------------------------------------------------------------


def player_agent(model, tools, rules):
    """The player; ``model`` is the policy's name."""
    return Agent(
        role="Player",
        goal="Find the secret answer in as few questions as you can.",
        backstory=SYSTEM_PROMPT + (SEARCH_PROMPT if tools else ""),
        tools=tools,
        llm=LLM(model, provider="openai", api_key="unused"),
        max_iter=rules.max_searches + PATIENCE,
        respect_context_window=False,  # with it, the policy would be asked for summaries as well
    )


def search_tool(search, flow):
    """The player's tool; CrewAI refuses more uses a kickoff, hence a question, than are allowed."""
    rules = flow.state.game.rules

    @tool("search", max_usage_count=rules.max_searches)
    async def find(query: str) -> str:
        """Look something up, for example which animals can fly."""
        return await look_up(search, query, flow.state.searches, rules)

    return find


def answerer_agent(answerer, noun):
    """The answerer, which alone knows the noun."""
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
    """An ``Answerer`` as a model of CrewAI's."""

    answerer: Any
    noun: Any

    def call(self, messages, *args, **options):
        """The answer to the question in the last message."""
        question = re.search("Question: (.*)", messages[-1]["content"])[1]
        return Said(**asdict(asyncio.run(self.answerer.answer(self.noun, question))))


if __name__ == "__main__":
    play(agent)
