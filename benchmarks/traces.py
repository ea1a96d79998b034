"""One episode as a picture, from the spans that it really wrote: docs/traces.png.

    python benchmarks/traces.py [--plot traces.png]

The agent plans with a tool, has two sub-agents answer through the Anthropic SDK, which writes spans
of its own, asks a frozen judge, and is rewarded. The policy is scripted and takes 60 ms a call.
"""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import AgentClient, ChatAgentEnv, ScriptedPolicy

PLAN = '<tool_call>\n{"name": "look_up", "arguments": {"word": "evert"}}\n</tool_call>'
TOOL: Any = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
COLOURS = {
    "invoke_agent": "#30475e", "execute_tool": "#e8a33d", "chat": "#3f8f8b", "reward": "#c0392b",
}  # fmt: skip
OTHERS = "#b9c2cc"


class Slow(ScriptedPolicy):
    """Takes its time."""

    async def __call__(self, *arguments: Any, **options: Any) -> Any:
        """The next reply, 60 ms later."""
        await asyncio.sleep(0.06)
        return await super().__call__(*arguments, **options)


def user(text: str) -> Any:
    """A message."""
    return {"role": "user", "content": text}


async def sub_agent(client: AgentClient, name: str) -> None:
    """Asks once, in a span of its own."""
    with trace.get_tracer("agent").start_as_current_span(f"sub-agent {name}"):
        await client.anthropic.messages.create(
            model=client.model, max_tokens=50, messages=[user(f"You are {name}. Go on.")]
        )


async def researcher(client: AgentClient) -> float:
    """Plans, asks two sub-agents, is judged."""
    messages = [user("What does 'evert' mean?")]
    said = await client.chat.completions.create(messages=messages, tools=[TOOL])
    call = (said.choices[0].message.tool_calls or [])[0]
    await asyncio.sleep(0.05)  # the tool
    messages.append(said.choices[0].message)
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "to turn inside out"})
    await client.chat.completions.create(messages=messages, tools=[TOOL])
    await asyncio.gather(sub_agent(client, "one"), sub_agent(client, "two"))
    client.reward(0.2)
    await client.chat.completions.create(model="judge", messages=[user("Is it right?")])
    return 1.0


def played() -> Sequence[ReadableSpan]:
    """The spans of one episode, by their beginning; of the second, since the first imports."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    replies = [PLAN, "It means to turn inside out.", "I agree.", "So do I."]
    researcher.__module__ = "builtins"  # a name without the script's
    for _ in range(2):
        exporter.clear()
        env = ChatAgentEnv(researcher, traces="otel", models={"judge": Slow(["Yes."])})
        asyncio.run(do_single_rollout(Slow(replies), env))
    return sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0)


def nested(spans: Sequence[ReadableSpan]) -> list[tuple[int, ReadableSpan]]:
    """Each span with its depth, below the one it lies in."""
    rows: list[tuple[int, ReadableSpan]] = []

    def add(parent: int | None, depth: int) -> None:
        for span in spans:
            if (span.parent.span_id if span.parent is not None else None) == parent:
                rows.append((depth, span))
                add(span.get_span_context().span_id, depth + 1)  # type: ignore[union-attr]

    add(None, 0)
    return rows


def draw(rows: list[tuple[int, ReadableSpan]], file: Path) -> None:
    """A line a span."""
    begin = rows[0][1].start_time or 0
    figure, axes = pyplot.subplots(figsize=(9.6, 0.34 * len(rows) + 0.7), dpi=110)
    for line, (depth, span) in enumerate(rows):
        start = ((span.start_time or 0) - begin) / 1e6
        width = ((span.end_time or 0) - (span.start_time or 0)) / 1e6
        colour = COLOURS.get(span.name.partition(" ")[0], OTHERS)
        if span.name == "reward":
            axes.plot(start, line, "D", color=colour, markersize=7)
            score = (span.attributes or {})["gen_ai.evaluation.score.value"]
            axes.annotate(
                f"{float(str(score)):+}", (start, line), (7, -4), textcoords="offset points"
            )
        else:
            axes.barh(line, width, left=start, height=0.62, color=colour)
        axes.text(-0.36, line, "   " * depth + span.name, va="center", fontsize=9,
                  transform=axes.get_yaxis_transform())  # fmt: skip
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks([])
    axes.set_xlabel("milliseconds")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.subplots_adjust(left=0.27, right=0.97, top=0.98, bottom=0.14)
    figure.savefig(file)


def main() -> None:
    """Play, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--plot", type=Path, default=Path("traces.png"))
    options = parser.parse_args()
    matplotlib.use("Agg")
    rows = nested(played())
    for depth, span in rows:
        print("  " * depth + span.name)
    draw(rows, options.plot)


if __name__ == "__main__":
    main()
