"""Twenty Questions as a LangGraph ``StateGraph``: ask, search, answer, finish.

    ask -> search -> ask       with a search tool; the rules limit the searches per question
    ask -> answer -> ask       until the noun is found or there are no more questions
           answer -> finish

The player's model is the policy. The answerer is the knowledge base or a named chat model:

    ChatAgentEnv(TwentyQuestionsGraph(answerer="judge"), task, models={"judge": ...})
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

import openai
from langchain_core.messages import AIMessage, ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from twenty_questions import Said, play

from evert.envs.twenty_questions.answerers import SYSTEM_PROMPT, Answerer, shipped_answerer
from evert.envs.twenty_questions.game import NOTHING_ASKED, QuestionGame, Rules, Search, question_of
from evert.envs.twenty_questions.nouns import Noun
from evert.envs.twenty_questions.player import (
    ENOUGH_SEARCHED,
    PATIENCE,
    SEARCH_TOOL,
    look_up,
    opening,
    report,
    turn_prompt,
)
from evert.envs.twenty_questions.search import SearchTool


class State(TypedDict):
    """The graph's state.

    ``searches`` contains the searches since the last answer, ``refused`` counts the searches over
    the limit, and ``score`` is set at the end.
    """

    game: QuestionGame
    messages: Annotated[list[Any], add_messages]
    searches: list[Search]
    refused: int
    score: float


@dataclass
class TwentyQuestionsGraph:
    """The game as an agent.

    Attributes:
        answerer: The answerer or the name of a frozen chat model (default: the knowledge base).
        search: The player's search tool (default: no search).
        rules: The rules of the game.
    """

    answerer: Answerer | str | None = None
    search: SearchTool | None = None
    rules: Rules = field(default_factory=Rules)

    async def __call__(self, client, task):
        """Play one game; return 1.0 if the noun was found, else 0.0."""
        game = QuestionGame(Noun(**task), self.rules)
        messages = opening(game, "full", search=self.search is not None)
        a_question = 2 * (self.rules.max_searches + PATIENCE) + 2  # max graph steps per question
        final = (
            await GameGraph(client, self.answerer, self.search)
            .compiled()
            .ainvoke(
                {"game": game, "messages": messages, "searches": [], "refused": 0},
                {"recursion_limit": self.rules.max_questions * a_question + 1},
            )
        )
        return final["score"]


agent = TwentyQuestionsGraph()
"""The game with default options, i.e. without search."""


class GameGraph:
    """The graph for one game, whose nodes are methods."""

    def __init__(self, client, answerer, search):
        self.client = client
        self.search_tool = search
        player = chat_model(client, client.model)
        self.player = player if search is None else player.bind_tools([SEARCH_TOOL])
        self.answerer = answerer or shipped_answerer()
        if isinstance(answerer, str):
            self.answerer = ChatAnswerer(chat_model(client, answerer))

    def compiled(self):
        """Return the compiled graph."""
        graph = StateGraph(State)
        for node in (self.ask, self.search, self.answer, self.finish):
            graph.add_node(node.__name__, node)
        graph.add_edge(START, "ask")
        graph.add_conditional_edges("ask", self.after_ask, ["search", "answer"])
        graph.add_conditional_edges("search", self.after_search, ["ask", "answer"])
        graph.add_conditional_edges("answer", self.router, ["ask", "finish"])
        graph.add_edge("finish", END)
        return graph.compile()

    # -- nodes -----------------------------------------------------------------------------------

    async def ask(self, state):
        """Get the player's reply, which is a question or a search."""
        return {"messages": [await self.player.ainvoke(state["messages"])]}

    async def search(self, state):
        """Run the player's searches, within the limit set by the rules."""
        searches, refused, results = list(state["searches"]), state["refused"], []
        for call in state["messages"][-1].tool_calls:
            query = str(call["args"].get("query", ""))
            result = await look_up(self.search_tool, query, searches, state["game"].rules)
            refused += result == ENOUGH_SEARCHED
            results.append(ToolMessage(result, tool_call_id=call["id"]))
        return {"messages": results, "searches": searches, "refused": refused}

    async def answer(self, state):
        """Answer the question. The answer is n/a if the reply contains no question."""
        game, last = state["game"], state["messages"][-1]
        question = question_of(last.content) if isinstance(last, AIMessage) else ""
        answer = NOTHING_ASKED
        if question:
            answer = await self.answerer.answer(game.noun, question)
        game.record(question, answer, tuple(state["searches"]))
        self.client.log(question=question, answer=answer.yes_or_no, reason=answer.brief_reason)
        told = [] if game.over else [{"role": "user", "content": turn_prompt(game, "full")}]
        return {"messages": told, "searches": [], "refused": 0}

    def finish(self, state):
        """Log the game and set the score."""
        return {"score": report(self.client, state["game"])}

    # -- edges -----------------------------------------------------------------------------------

    def after_ask(self, state):
        """If there is a search tool and the player called it, run it."""
        calls = state["messages"][-1].tool_calls
        return "search" if calls and self.search_tool is not None else "answer"

    def after_search(self, state):
        """Return to the player, unless too many searches were rejected."""
        return "ask" if state["refused"] < PATIENCE else "answer"

    def router(self, state):
        """Continue with the next question, or finish."""
        return "finish" if state["game"].over else "ask"


class ChatAnswerer:
    """An answerer that asks a LangChain chat model."""

    def __init__(self, model):
        self.model = model.with_structured_output(Said, method="json_schema")

    async def answer(self, noun, question):
        """Answer one question."""
        prompt = SYSTEM_PROMPT.format(answer=noun.answer, category=noun.category)
        reply = await self.model.ainvoke([("system", prompt), ("user", question)])
        return reply.checked(noun, question)


def chat_model(client, name):
    """Return a chat model for the policy or for a frozen model."""
    return ChatOpenAI(
        model=name,
        api_key="unused",
        base_url=client.transport.base_url,
        http_async_client=openai.DefaultAsyncHttpxClient(transport=client.transport),
        http_client=openai.DefaultHttpxClient(transport=client.transport),
        max_retries=0,
    )


if __name__ == "__main__":
    play(agent)
