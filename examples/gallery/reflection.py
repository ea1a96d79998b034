"""Reflection in Microsoft's Agent Framework: a worker revises its answer until it is approved.

Source: microsoft/agent-framework, python/samples/03-workflows/agents/
workflow_as_agent_reflection_pattern.py (MIT), rebuilt because samples are not published as a
package. The two executors and the loop are the same, except that the loop ends after three rounds.

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
    """A message to the reviewer: the conversation so far, ending with the answer."""

    messages: list[Message]
    round: int


@dataclass
class Verdict:
    """The reviewer's message to the worker."""

    draft: Draft
    review: Review


class Reviewer(Executor):
    """Reviews answers."""

    def __init__(self, chat) -> None:
        super().__init__(id="reviewer")
        self.chat = chat

    @handler
    async def review(self, draft: Draft, context: WorkflowContext[Verdict]) -> None:
        """Approve the answer or give feedback."""
        system = "You review an agent. Approve only what is relevant, right, clear and complete."
        please = Message("user", ["Please review the agent's answer."])
        reply = await self.chat.get_response(
            [Message("system", [system]), *draft.messages[1:], please],
            options={"response_format": Review},
        )
        review = Review.model_validate_json(reply.messages[-1].text)
        await context.send_message(Verdict(draft, review))


class Worker(Executor):
    """Answers, and tries again whenever the reviewer does not approve the answer."""

    def __init__(self, chat) -> None:
        super().__init__(id="worker")
        self.chat = chat

    @handler
    async def start(self, asked: list[Message], context: WorkflowContext[Draft]) -> None:
        """Give the first answer."""
        await self.answer([Message("system", ["You are a helpful assistant."]), *asked], 1, context)

    @handler
    async def hear(self, verdict: Verdict, context: WorkflowContext[Draft, AgentResponse]) -> None:
        """Finish if the answer was approved or after three rounds; otherwise, answer again."""
        draft, review = verdict.draft, verdict.review
        if review.approved or draft.round == 3:
            await context.yield_output(AgentResponse(messages=draft.messages[-1:]))
            return
        told = Message("user", [f"{review.feedback}\nPlease answer again."])
        await self.answer([*draft.messages, told], draft.round + 1, context)

    async def answer(self, messages, number, context) -> None:
        """Call the model and send its answer to the reviewer."""
        reply = await self.chat.get_response(messages)
        await context.send_message(Draft([*messages, *reply.messages], number))


def reflecting(chat):
    """Return the workflow as an agent."""
    worker, reviewer = Worker(chat), Reviewer(chat)
    builder = WorkflowBuilder(start_executor=worker)
    return builder.add_edge(worker, reviewer).add_edge(reviewer, worker).build().as_agent()


# -- glue ----------------------------------------------------------------------------------------


async def agent(client, task):
    """Ask a question; return how close the final answer is to the expected one."""
    chat = OpenAIChatClient(model=client.model, async_client=client.openai)
    try:
        response = await reflecting(chat).run(task["asked"])
    except ChatClientException:  # the review is malformed
        return 0.0
    return closeness(response.text, task["answer"])
