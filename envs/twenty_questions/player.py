"""The player, as an agent function that uses an OpenAI-style client.

    ChatAgentEnv(twenty_questions_agent, TRAIN_TASKS[0])
    ChatAgentEnv(TwentyQuestions(answerer=ModelAnswerer(...), search=KnowledgeSearch()), task)

By default (``twenty_questions_agent``), questions are answered from the shipped facts, and there is
no search tool. To change the answerer, search tool, rules or prompt, create a ``TwentyQuestions``.
The whole game is one conversation that is only ever appended to, so it becomes a single datum.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

from evert.bridge.clients.client import AgentClient, BlockingAgentClient
from evert.bridge.episode.agent import Outcome
from evert.envs.twenty_questions.answerers import Answerer, shipped_answerer
from evert.envs.twenty_questions.game import NOTHING_ASKED, QuestionGame, Rules, Search, question_of
from evert.envs.twenty_questions.measures import measures
from evert.envs.twenty_questions.nouns import Noun, Split, of_split, shipped_nouns
from evert.envs.twenty_questions.search import KnowledgeSearch, SearchTool


class Task(TypedDict):
    """A task in a dataset: a noun to guess, as plain data that can be pickled and printed."""

    answer: str
    category: str
    split: Split
    rules: NotRequired[dict[str, Any]]
    """Rule overrides, such as ``{"max_questions": 6}``."""


def tasks_of(nouns: Iterable[Noun]) -> list[Task]:
    """Convert nouns to tasks."""
    return [Task(answer=n.answer, category=n.category, split=n.split) for n in nouns]


def noun_of(task: Task) -> Noun:
    """Return a task's noun."""
    return Noun(task["answer"], task["category"], task["split"])


def with_rules(tasks: Iterable[Task], **rules: Any) -> list[Task]:
    """Return the same tasks with changed rules, such as ``max_questions=6``."""
    replace(Rules(), **rules)
    return [Task({**task, "rules": rules}) for task in tasks]


TRAIN_TASKS = tasks_of(of_split(shipped_nouns(), "train"))
TEST_TASKS = tasks_of(of_split(shipped_nouns(), "test"))
SHOWN_TRAIN_TASKS = with_rules(TRAIN_TASKS, max_questions=6, guess_cost=0.1)
"""Only six questions, and wrong guesses cost reward, so trying all ten nouns doesn't pay off."""

HIDDEN = Rules(show_category=False)
SHOWN = Rules(show_category=True)

# -- messages to the player ----------------------------------------------------------------------

Style: TypeAlias = Literal["full", "short"]

SYSTEM_PROMPT = (
    "You play Twenty Questions. Find the secret answer by asking yes/no questions, one at a time; "
    "you are answered yes, no, or n/a where it cannot be told. A guess, like 'Is it a wombat?', is "
    "a question too. Use what you know already, and never ask the same twice. Reply with the next "
    "question only."
)
SEARCH_PROMPT = " You may use the search tool at most once before each question."
SEARCH_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Look something up, for example which animals can fly.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "What to look up."}},
            "required": ["query"],
        },
    },
}
ENOUGH_SEARCHED = "No more searches before this question. Ask your question now."
PATIENCE = 3
"""After this many rejected searches, the question counts as empty."""


def opening(game: QuestionGame, style: Style, *, search: bool = False) -> list[dict[str, Any]]:
    """Return the messages that precede the first question.

    The "short" style, a single user message with a few words, is for models with a few million
    parameters.
    """
    if style == "short":
        return [{"role": "user", "content": turn_prompt(game, style)}]
    prompt = SYSTEM_PROMPT + (SEARCH_PROMPT if search else "")
    return [
        {"role": "system", "content": prompt},
        {"role": "user", "content": game.situation()},
    ]


def turn_prompt(game: QuestionGame, style: Style) -> str:
    """Return the prompt for the next question: the last answer and the question's number."""
    last = game.turns[-1].answer.yes_or_no if game.turns else None
    if style == "short":
        first = game.noun.category if game.rules.show_category else "20 questions"
        return f"{last or first} {game.number}"
    return f"{last}. {game.situation()}" if last else game.situation()


def conversation(game: QuestionGame, style: Style) -> list[dict[str, Any]]:
    """Convert any player's game to the conversation of a model, without the searches."""
    prefix = QuestionGame(game.noun, game.rules)
    messages = opening(prefix, style)
    for turn in game.turns:
        if prefix.turns:
            messages.append({"role": "user", "content": turn_prompt(prefix, style)})
        messages.append({"role": "assistant", "content": turn.question})
        prefix.turns.append(turn)
    return messages


# -- the agent -----------------------------------------------------------------------------------


@dataclass
class TwentyQuestions:
    """The game as an agent.

    Attributes:
        answerer: The answerer (default: the shipped facts).
        search: The player's search tool (default: no search).
        rules: The rules, which tasks can override.
        style: "full" prompts, or "short" prompts for tiny models.
    """

    answerer: Answerer | None = None
    search: SearchTool | None = None
    rules: Rules = field(default_factory=Rules)
    style: Style = "full"

    async def __call__(self, client: AgentClient, task: Task) -> float:
        """Play a game. Return 1.0 if it is won, else 0.0, minus the cost of wrong guesses."""
        rules = replace(self.rules, **task.get("rules", {}))
        return report(client, await self.play(client, QuestionGame(noun_of(task), rules)))

    async def play(self, client: AgentClient, game: QuestionGame) -> QuestionGame:
        """Play a game to the end."""
        answerer = self.answerer or shipped_answerer()
        messages = opening(game, self.style, search=self.search is not None)
        while not game.over:
            if game.turns:
                messages.append({"role": "user", "content": turn_prompt(game, self.style)})
            question, searches = await self._question(client, game, messages)
            answer = NOTHING_ASKED
            if question:
                answer = await answerer.answer(game.noun, question)
            game.record(question, answer, searches)
            client.log(question=question, answer=answer.yes_or_no, reason=answer.brief_reason)
        return game

    async def _question(
        self, client: AgentClient, game: QuestionGame, messages: list[dict[str, Any]]
    ) -> tuple[str, tuple[Search, ...]]:
        """Return the next question and the searches before it. Appends to ``messages``."""
        options: dict[str, Any] = {} if self.search is None else {"tools": [SEARCH_TOOL]}
        searches: list[Search] = []
        refusals = 0
        while refusals < PATIENCE:
            completion = await client.chat.completions.create(messages=messages, **options)
            message = completion.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if self.search is None or not message.tool_calls:
                return question_of(message.content or ""), tuple(searches)
            for call in message.tool_calls:
                result = await look_up(self.search, _query_of(call), searches, game.rules)
                refusals += result == ENOUGH_SEARCHED
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        return "", tuple(searches)


def _query_of(call: Any) -> str:
    try:
        return str(json.loads(call.function.arguments)["query"])
    except (AttributeError, KeyError, TypeError, ValueError):
        return ""


# -- shared with players in other frameworks -----------------------------------------------------


async def look_up(tool: SearchTool, query: str, searches: list[Search], rules: Rules) -> str:
    """Search on behalf of the player, or tell it that no more searches are allowed.

    Args:
        tool: The search tool.
        query: The query. An empty query counts as a search but is not looked up.
        searches: Earlier searches for this question. The new one is appended unless it is rejected.
        rules: The rules, which limit the number of searches.
    """
    if len(searches) >= rules.max_searches:
        return ENOUGH_SEARCHED
    query = query.strip()
    result = await tool.search(query) if query else "The search needs a query."
    searches.append(Search(query, result))
    return result


def report(client: AgentClient | BlockingAgentClient, game: QuestionGame) -> float:
    """Record the metrics and transcript of a finished game and return its reward."""
    outcome = outcome_of(game)
    for name, value in outcome.metrics.items():
        client.metric(name, value)
    client.log(**outcome.logs)
    return outcome.reward or 0.0


def outcome_of(game: QuestionGame) -> Outcome:
    """Return a game's reward (score minus the cost of wrong guesses), metrics and transcript."""
    logs: dict[str, str | int | float] = {
        "target": game.noun.answer,
        "transcript": game.transcript(),
    }
    metrics = measures(game)
    cost = game.rules.guess_cost * metrics["guesses_in_vain"]
    return Outcome(game.score - cost, metrics={**game.summary(), **metrics}, logs=logs)


@cache
def shipped_search() -> KnowledgeSearch:
    """Return the default search tool, which all players share."""
    return KnowledgeSearch()


async def twenty_questions_agent(client: AgentClient, task: Task) -> float:
    """Guess a secret noun with twenty yes/no questions.

    ## Action Space
    A question in plain English, ``Text``, or its tokens with ``level="tokens"``,
    ``Sequence(Discrete(vocabulary))``. "Is it a zebra?" is a guess.

    ## Observation Space
    The rules and all questions so far, each with its answer ("yes", "no" or "n/a") and the number
    of the next question: a ``Sequence`` of messages, or of token ids with ``level="tokens"``.

    ## Starting State
    A noun drawn from ``TRAIN_TASKS``, which has 80% of the nouns in each of 18 categories;
    ``TEST_TASKS`` are held out. The category is hidden.

    ## Reward
    1 at the end if the noun was found, 0 otherwise.

    ## Episode End
    Terminated after the correct guess or twenty questions (tasks can set a different number);
    truncated only by a limit on turns or tokens.

    ## Information
    As in ``AgentGymEnv``. ``task`` is the noun to guess. ``logs`` contains ``question``,
    ``answer`` and ``reason`` and, at the end, ``target`` and ``transcript``. Hide them from the
    policy.

    ## Arguments
    As in ``AgentGymEnv``: ``level``, ``render_mode``, ``tasks``, ``max_turns``, ...

    ## References
    ``recipes.multiplayer_rl.twenty_questions`` in
    https://github.com/thinking-machines-lab/tinker-cookbook; the article "Tuning ANY AI agent with
    Tinker and Agent-lightning".

    ## Version History
    v0: first version.
    """
    return await TwentyQuestions(rules=HIDDEN)(client, task)


async def short_twenty_questions_agent(client: AgentClient, task: Task) -> float:
    """Play the same game with prompts of a few words, for models with a few million parameters."""
    return await TwentyQuestions(rules=HIDDEN, style="short")(client, task)


async def searching_twenty_questions_agent(client: AgentClient, task: Task) -> float:
    """Play the same game with a tool that looks things up in the shipped facts."""
    return await TwentyQuestions(rules=HIDDEN, search=shipped_search())(client, task)


async def searching_short_twenty_questions_agent(client: AgentClient, task: Task) -> float:
    """Play the same game with short prompts and the search tool."""
    agent = TwentyQuestions(rules=HIDDEN, search=shipped_search(), style="short")
    return await agent(client, task)


# -- with the category shown ---------------------------------------------------------------------


async def shown_twenty_questions_agent(client: AgentClient, task: Task) -> float:
    """Guess a secret noun from a known category with twenty yes/no questions.

    ## Action Space
    As in ``evert/TwentyQuestions-v0``.

    ## Observation Space
    As in ``evert/TwentyQuestions-v0``, plus the noun's category.

    ## Starting State
    As in ``evert/TwentyQuestions-v0``, with the category shown.

    ## Reward
    1 at the end if the noun was found, 0 otherwise.

    ## Episode End
    As in ``evert/TwentyQuestions-v0``.

    ## Information
    As in ``evert/TwentyQuestions-v0``.

    ## Arguments
    As in ``AgentGymEnv``: ``level``, ``render_mode``, ``tasks``, ``max_turns``, ...

    ## References
    As in ``evert/TwentyQuestions-v0``.

    ## Version History
    v0: first version.
    """
    return await TwentyQuestions(rules=SHOWN)(client, task)


async def shown_short_twenty_questions_agent(client: AgentClient, task: Task) -> float:
    """Play the same game with prompts of a few words."""
    return await TwentyQuestions(rules=SHOWN, style="short")(client, task)


async def shown_searching_twenty_questions_agent(client: AgentClient, task: Task) -> float:
    """Play the same game with a tool that looks things up in the shipped facts."""
    return await TwentyQuestions(rules=SHOWN, search=shipped_search())(client, task)


async def shown_searching_short_twenty_questions_agent(client: AgentClient, task: Task) -> float:
    """Play the same game with short prompts and the search tool."""
    agent = TwentyQuestions(rules=SHOWN, search=shipped_search(), style="short")
    return await agent(client, task)
