"""Reflection in Microsoft's Agent Framework: a worker answers until a reviewer approves.

Source: microsoft/agent-framework, python/samples/03-workflows/agents/
workflow_as_agent_reflection_pattern.py (MIT), rebuilt: samples are in no package. The two executors
and the loop are the same, but the loop ends after three rounds.

    evert train agent=reflection:agent train_tasks=reflection:TASKS on_agent_error=0
"""

from dataclasses import dataclass

from agent_framework import (
    AgentResponse,
    Executor,
    Message,
    WorkflowBuilder,
    WorkflowContext,
    handler,
)
from agent_framework.exceptions import ChatClientException
from agent_framework.openai import OpenAIChatClient
from pydantic import BaseModel
from scoring import closeness

TASKS = [
    {"asked": "Name the capital of France.", "answer": "Paris"},
    {"asked": "Name the largest planet.", "answer": "Jupiter"},
    {"asked": "Name the metal with the symbol Fe.", "answer": "Iron"},
    {"asked": "Name the author of Hamlet.", "answer": "William Shakespeare"},
]

# -- the agent, rebuilt --------------------------------------------------------------------------


class Review(BaseModel):
    """The reviewer's reply."""

    feedback: str
    approved: bool


@dataclass
class Draft:
    """A message to the reviewer: the conversation so far, which ends with the answer."""

    messages: list[Message]
    round: int


@dataclass
class Verdict:
    """A message back to the worker."""

    draft: Draft
    review: Review


class Reviewer(Executor):
    """Reviews an answer."""

    def __init__(self, chat) -> None:
        super().__init__(id="reviewer")
        self.chat = chat

    @handler
    async def review(self, draft: Draft, context: WorkflowContext[Verdict]) -> None:
        """Approve, or say what is missing."""
        system = "You review an agent. Approve only what is relevant, right, clear and complete."
        please = Message("user", ["Please review the agent's answer."])
        reply = await self.chat.get_response(
            [Message("system", [system]), *draft.messages[1:], please],
            options={"response_format": Review},
        )
        review = Review.model_validate_json(reply.messages[-1].text)
        await context.send_message(Verdict(draft, review))


class Worker(Executor):
    """Answers, again after each review that does not approve."""

    def __init__(self, chat) -> None:
        super().__init__(id="worker")
        self.chat = chat

    @handler
    async def start(self, asked: list[Message], context: WorkflowContext[Draft]) -> None:
        """Answer for the first time."""
        await self.answer([Message("system", ["You are a helpful assistant."]), *asked], 1, context)

    @handler
    async def hear(self, verdict: Verdict, context: WorkflowContext[Draft, AgentResponse]) -> None:
        """End after an approval or three rounds, else answer again."""
        draft, review = verdict.draft, verdict.review
        if review.approved or draft.round == 3:
            await context.yield_output(AgentResponse(messages=draft.messages[-1:]))
            return
        told = Message("user", [f"{review.feedback}\nPlease answer again."])
        await self.answer([*draft.messages, told], draft.round + 1, context)

    async def answer(self, messages, number, context) -> None:
        """Ask the model, and send its answer to the reviewer."""
        reply = await self.chat.get_response(messages)
        await context.send_message(Draft([*messages, *reply.messages], number))


def reflecting(chat):
    """Return the workflow as an agent."""
    worker, reviewer = Worker(chat), Reviewer(chat)
    builder = WorkflowBuilder(start_executor=worker)
    return builder.add_edge(worker, reviewer).add_edge(reviewer, worker).build().as_agent()


# -- glue ----------------------------------------------------------------------------------------


async def agent(client, task):
    """Play a question; return how close the last answer is."""
    chat = OpenAIChatClient(model=client.model, async_client=client.openai)
    try:
        response = await reflecting(chat).run(task["asked"])
    except ChatClientException:  # the review is malformed
        return 0.0
    return closeness(response.text, task["answer"])
