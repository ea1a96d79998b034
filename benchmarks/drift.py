"""Count the tokens that would be trained on for Claude Code, Codex and an agent that compacts its
history.

    python benchmarks/drift.py [--quick] [--tidy] [--only compacting codex] [--episodes 8]

The agents run unchanged, but the model is scripted. It writes thoughts, uses unusual whitespace in
every other tool call, and splits 2% of its tokens in two, as happens when sampling at temperature
1. With ``--tidy`` it writes exactly like a chat template. The same episodes are counted in four
ways. The last three ways render each prompt from the agent's messages, like a trainer that stores
only messages:

    evert       the data that evert trains on
    each call   one datum per call
    merged      calls that extend the previous one exactly are joined (``trajectory_to_data``)
    last        only the last conversation, rendered from its text as one datum

A sampled token counts as ``trained`` if it has a weight in some datum, and if exactly the same
tokens precede it there as when it was sampled. ``lost`` counts the other sampled tokens, and ``not
sampled`` counts the other tokens with a weight. ``rendered`` counts the tokens that the renderer
produced, and ``in data`` counts the tokens of all data. The benchmark fails if an episode fails, or
if evert does not produce exactly one datum per conversation. Missing programs are skipped, with a
note on how to install them. ``slime2288`` reproduces slime's issue 2288, where 8 rollouts of Claude
Code became 64 samples: Qwen3.5's template removes thoughts from the history, so this case has no
target. ``slime2288-kept`` uses the variant of the template that keeps thoughts.
"""

import argparse
import asyncio
import json
import logging
import random
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tinker
from rich.console import Console
from rich.table import Column, Table
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.renderers import Renderer, get_renderer
from tinker_cookbook.renderers.base import Message, RenderContext, RenderedMessage, TrainOnWhat
from tinker_cookbook.renderers.qwen3 import Qwen3Renderer
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory, Transition

from evert import AgentClient, ChatAgentEnv, Recorder, ScriptedPolicy
from evert.agents import claude_code, codex
from evert.bridge.chat.messages import read_tools
from evert.bridge.chat.request import ChatRequest
from evert.bridge.conversations.reading import read_entries
from evert.bridge.env.transcript import Transcript
from evert.bridge.groups.group import sort_by_lineage
from evert.bridge.records.sequences import shared
from evert.bridge.tokens.bases import base_tokenizer
from evert.bridge.tokens.renderer import PromptRenderer, prompt_renderer, supervised_example
from evert.bridge.tokens.token_log import flatten
from evert.trainers.system.provenance import origin

PROGRAMS = Path(__file__).parent.parent / ".frameworks/programs/node_modules/.bin"
"""Where ``frameworks/make_programs.py`` installs programs. Others are looked up on the PATH."""
SPLIT = 0.02  # fraction of tokens that the policy splits in two

# -- agents and model scripts --------------------------------------------------------------------

Said = tuple[str, str, dict[str, Any]]
"""A thought, a tool name and the arguments. If the name is empty, the model replies "Done."."""

DONE: Said = ("That was all.", "", {})
WRONG, RIGHT, NOTE = "return a - b", "return a + b", "add() is repaired."
FILES = {"calc.py": f"def add(a, b):\n    {WRONG}\n", "notes.md": "# Notes\n\nadd() is broken.\n"}
CODE, NOTES = {"file_path": "calc.py"}, {"file_path": "notes.md"}
CLAUDE: list[Said] = [
    ("I read the code first.", "Read", CODE),
    ("It takes b away.", "Edit", {**CODE, "old_string": WRONG, "new_string": RIGHT}),
    ("I look at what I did.", "Read", {**CODE, "limit": 5}),
    ("The notes are next.", "Read", NOTES),
    ("They are old.", "Edit", {**NOTES, "old_string": "add() is broken.", "new_string": NOTE}),
    ("I look at them, too.", "Read", {**NOTES, "offset": 2}),
    ("Is there more?", "Read", {**CODE, "offset": 1, "limit": 2}),
    DONE,
]
EDITS = [f"sed -i 's/{WRONG}/{RIGHT}/' calc.py", f"echo '{NOTE}' > notes.md"]
LINES = ["ls -l", "cat calc.py", EDITS[0], "cat calc.py", "cat notes.md", EDITS[1], "cat notes.md"]
CODEX: list[Said] = [*(("A command.", "exec_command", {"cmd": line}) for line in LINES), DONE]

PAGES = [f"Page {n}: " + f"the tower has {n + 3} windows and a door. " * 6 for n in range(7)]
READING: list[Said] = [("The next page.", "page", {"number": n}) for n in range(len(PAGES))]
READING = [*READING[:4], ("Four pages are about a tower.", "", {}), *READING[4:], DONE]
LONGEST = 900  # history length (characters) at which ``compacting`` asks for a summary
NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}}
TOOLS: Any = [{"type": "function", "function": {"name": "page", "parameters": NUMBER}}]


async def compacting(client: AgentClient, task: str) -> float:
    """Read pages with a tool, replacing the history with a summary when it gets too long."""
    begin: list[Any] = [{"role": "user", "content": task}]
    messages, read = begin, 0

    async def ask(messages: list[Any]) -> dict[str, Any]:
        given = await client.chat.completions.create(messages=messages, tools=TOOLS)
        return dict(given.choices[0].message.model_dump(exclude_none=True))

    while True:
        if sum(len(one.get("content") or "") for one in messages) > LONGEST:
            summary = await ask([*messages, {"role": "user", "content": "Sum up what you read."}])
            messages = [*begin, {"role": "user", "content": f"So far: {summary['content']}"}]
        said = await ask(messages)
        if not (calls := said.get("tool_calls")):
            return float(read == len(PAGES))
        for call in calls:
            page = PAGES[json.loads(call["function"]["arguments"])["number"]]
            result = {"role": "tool", "tool_call_id": call["id"], "content": page}
            messages, read = [*messages, said, result], read + 1


class Case(NamedTuple):
    """An agent, the model script and the chat template."""

    make: Callable[..., Any]  # returns the agent for a prompt, program, files and reward
    says: list[Said]
    conversations: int | None  # expected per episode; None if the template splits conversations
    template: str = "qwen3"
    program: str = ""  # executable, if the agent needs one
    install: str = ""


def repaired(result: Any, task: str) -> float:
    """Return whether both files were edited."""
    return float(RIGHT in result.read("calc.py") and NOTE in result.read("notes.md"))


NPM = ("claude", "npm install -g @anthropic-ai/claude-code")
CASES = {
    "claude": Case(claude_code, CLAUDE, 1, "qwen3", *NPM),
    "codex": Case(codex, CODEX, 1, "qwen3", "codex", "npm install -g @openai/codex"),
    "compacting": Case(lambda *_, **__: compacting, READING, 2),
    "slime2288": Case(claude_code, CLAUDE, None, "qwen3_5", *NPM),
    "slime2288-kept": Case(claude_code, CLAUDE, 1, "qwen3_5_preserve_thinking", *NPM),
}

# -- playing -------------------------------------------------------------------------------------


def reply(is_json: bool, odd: bool, thought: str, tool: str, given: dict[str, Any]) -> str:
    """Return the text of a reply as the renderer would write it, or with odd whitespace."""
    if is_json:
        opening, gap = "<think>\n", "\n"
        separators = (",", ":") if odd else None
        call = json.dumps({"name": tool, "arguments": given}, separators=separators)
    else:
        opening, gap = "", ""  # the prompt already begins the thought
        end = "\n\n" if odd else "\n"
        inside = "".join(f"<parameter={k}>\n{v}{end}</parameter>\n" for k, v in given.items())
        call = f"<function={tool}>\n{inside}</function>"
    said = f"{gap}<tool_call>\n{call}\n</tool_call>" if tool else "Done."
    return f"{opening}{thought}\n</think>\n\n{said}"


class Sampled(ScriptedPolicy):
    """A scripted policy that splits some of its tokens."""

    def __init__(self, said: Sequence[str], renderer: Renderer, split: float, seed: int) -> None:
        super().__init__(said, renderer=renderer)
        self.renderer, self._split, self._draw = renderer, split, random.Random(seed)

    async def __call__(self, *given: Any, **named: Any) -> TokensWithLogprobs:
        """Return the next reply."""
        action = await super().__call__(*given, **named)
        tokens = [piece for token in action.tokens for piece in self._pieces(token)]
        return TokensWithLogprobs(tokens, [-1.0] * len(tokens), action.stop_reason)

    def _pieces(self, token: int) -> list[int]:
        tokens = base_tokenizer()
        if token in tokens.added_tokens_decoder or self._draw.random() >= self._split:
            return [token]
        text = tokens.decode([token])
        return [*tokens.encode(text[:1]), *tokens.encode(text[1:])]


def counting(template: str) -> Any:
    """Return a renderer that counts the tokens it renders. For "qwen3" it keeps thoughts."""
    renderer: Any = Qwen3Renderer(base_tokenizer(), strip_thinking_from_history=False)
    renderer = renderer if template == "qwen3" else get_renderer(template, base_tokenizer())

    class Counting(type(renderer)):  # type: ignore[misc]
        rendered = 0

        def render_message(self, message: Message, ctx: RenderContext) -> RenderedMessage:
            found: RenderedMessage = super().render_message(message, ctx)
            header = [found.header] if found.header is not None else []
            Counting.rendered += len(flatten([*header, *found.output]))
            return found

    renderer.__class__ = Counting
    return renderer


class Played(NamedTuple):
    """A finished episode."""

    turns: list[Transition]  # in lineage order, as evert trains on them
    calls: list[tuple[ChatRequest, TokensWithLogprobs]]  # requests and sampled tokens
    last: dict[str, Any]  # the last reply, as a message


class Requests(Transcript):
    """A transcript that also stores the full requests."""

    def __init__(self) -> None:
        super().__init__()
        self.whole: list[ChatRequest] = []

    def note(self, request: ChatRequest, *args: Any, **options: Any) -> None:
        """Store a request."""
        self.whole.append(request)
        super().note(request, *args, **options)


async def play(agent: Any, policy: Sampled, recorder: Recorder) -> Played:
    """Play and record an episode. A reward other than 1 is an error."""
    env = recorder.watch(ChatAgentEnv(agent, "Repair calc.py.", renderer=policy.renderer))
    env.transcript = asked = Requests()
    played = await do_single_rollout(policy, env)
    counter: Any = type(policy.renderer)
    rendered = counter.rendered
    recorder.add([played], [env])
    counter.rendered = rendered  # ignore the tokens that the recorder renders
    if sum(turn.reward for turn in played.transitions) != 1.0:
        raise RuntimeError(f"The agent did not solve its task: {played.transitions[-1].logs}")
    calls = [*zip(asked.whole, [turn.ac for turn in played.transitions], strict=True)]
    sort_by_lineage(played, env.turn_lineages)
    last = asked.reply(len(calls) - 1)
    return Played(played.transitions, calls, {} if last is None else last.as_message())


# -- counting ------------------------------------------------------------------------------------

COLUMNS = ("data", "trained", "lost", "not sampled", "rendered", "in data")
Datum = tuple[list[int], list[float]]
"""Tokens and their weights."""


def messages_of(call: ChatRequest, prompts: PromptRenderer, *further: Any) -> list[Message]:
    """Return the messages of a call, converted without any state from earlier calls."""
    messages = [entry.message for entry in read_entries([*call.messages, *further], 0, {})]
    system = str(messages.pop(0)["content"]) if messages[0]["role"] == "system" else ""
    return [*prompts.tool_prefix(read_tools(call.tools or []), system), *messages]


def anew(played: Played, prompts: PromptRenderer) -> list[Transition]:
    """Return the calls as transitions, with prompts rendered from the messages."""
    called = [(prompts.full(messages_of(call, prompts)), said) for call, said in played.calls]
    ints: Any = tinker.ModelInput.from_ints
    return [Transition(ints(prompt), said, 0.0, False) for prompt, said in called]


def joined(turns: Sequence[Transition]) -> list[Datum]:
    """Return the data that the Cookbook builds from these turns."""
    found = []
    for datum in trajectory_to_data(Trajectory([*turns], tinker.ModelInput.empty()), 1.0):
        targets, mask = (datum.loss_fn_inputs[name].tolist() for name in ("target_tokens", "mask"))
        found.append(([*datum.model_input.to_ints()[:1], *targets], [0.0, *mask]))
    return found


def from_text(played: Played, prompts: PromptRenderer) -> Datum:
    """Render the last conversation from its messages as a single datum."""
    messages = messages_of(played.calls[-1][0], prompts, played.last)
    found, weights = supervised_example(prompts, messages, TrainOnWhat.ALL_ASSISTANT_MESSAGES)
    return found.to_ints(), weights.tolist()


def kept(turn: Transition, datum: Datum) -> int:
    """Return how many of the tokens sampled in a turn are trained by a datum.

    The count is 0 unless the datum starts with the turn's prompt.
    """
    (tokens, weights), prompt = datum, turn.ob.to_ints()
    start = len(prompt) if tokens[: len(prompt)] == prompt else len(tokens)
    return int(sum(weights[start : start + shared([*turn.ac.tokens], [*tokens[start:]])]))


def count(pairs: Sequence[tuple[list[Transition], list[Datum]]], rendered: int) -> dict[str, int]:
    """Return a table row for the sampled turns and the data of each episode."""
    sampled = sum(len(turn.ac.tokens) for turns, _ in pairs for turn in turns)
    trained = sum(max(kept(turn, one) for one in data) for turns, data in pairs for turn in turns)
    every = [datum for _, data in pairs for datum in data]
    weighted = int(sum(sum(weights) for _, weights in every))
    in_data = sum(len(tokens) for tokens, _ in every)
    row = (len(every), trained, sampled - trained, weighted - trained, rendered, in_data)
    return dict(zip(COLUMNS, row, strict=True))


def counted(episodes: Sequence[Played], renderer: Any) -> dict[str, dict[str, int]]:
    """Return one row per counting method. Call it right after playing the episodes."""
    prompts, counter = prompt_renderer(renderer), type(renderer)
    rows = {"evert": count([(one.turns, joined(one.turns)) for one in episodes], counter.rendered)}
    ways: dict[str, Callable[[Played, list[Transition]], list[Datum]]] = {
        "each call": lambda _, turns: [one for turn in turns for one in joined([turn])],
        "merged": lambda _, turns: joined(turns),
        "last": lambda played, _: [from_text(played, prompts)],
    }
    for way, data_of in ways.items():
        counter.rendered = 0
        pairs = [(turns, data_of(one, turns)) for one in episodes if (turns := anew(one, prompts))]
        rows[way] = count(pairs, counter.rendered)
    return rows


# -- the command ---------------------------------------------------------------------------------


def measure(name: str, options: argparse.Namespace, console: Console) -> dict[str, dict[str, int]]:
    """Play a case and return its rows. If the program is missing, return no rows."""
    case, episodes, recorder = CASES[name], list[Played](), Recorder(options.out / name)
    program = shutil.which(case.program, path=str(PROGRAMS)) or shutil.which(case.program) or ""
    if case.program and not program:
        return {}
    renderer, is_json, is_odd = counting(case.template), case.template == "qwen3", not options.tidy
    said = [reply(is_json, is_odd and n % 2 == 1, *one) for n, one in enumerate(case.says)]
    agent = case.make("{task}", program=program, files=FILES, reward=repaired)
    for number in range(options.episodes):
        policy = Sampled(said, renderer, 0.0 if options.tidy else SPLIT, number)
        episodes.append(asyncio.run(play(agent, policy, recorder)))
        console.print(f"{name}: played episode {number + 1} of {options.episodes}")
    return counted(episodes, renderer)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if evert does not make one datum per conversation."""
    options, found, notes = parse(argv), dict[str, Any](), list[str]()
    console = Console(highlight=False, width=100)
    logging.getLogger("tinker_cookbook.renderers.base").setLevel(logging.ERROR)  # "last" warns
    numbers = (Column(name, justify="right") for name in COLUMNS)
    table = Table("case", "way", *numbers, box=None, pad_edge=False)
    for name in options.only:
        case, rows = CASES[name], measure(name, options, console)
        found[name], wanted = rows, (case.conversations or 0) * options.episodes
        for way, row in (rows or {"not installed": {}}).items():
            table.add_row(name, way, *(f"{number:,}" for number in row.values()))
        if not rows:
            notes.append(f"{case.program} is not installed: {case.install}")
        elif wanted and (rows["evert"]["data"], rows["evert"]["lost"]) != (wanted, 0):
            notes.append(f"FAILED {name}: expected {wanted} data (one per conversation), none lost")
    console.print(table, *notes, sep="\n")
    record = {"episodes": options.episodes, "tidy": options.tidy, "rows": found, **origin()}
    (options.out / "drift.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return int(any(note.startswith("FAILED") for note in notes))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="one episode per case")
    parser.add_argument("--tidy", action="store_true", help="script writes like a chat template")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-drift"))
    options = parser.parse_args(argv)
    options.episodes = 1 if options.quick else options.episodes
    if options.episodes < 1:
        parser.error(f"--episodes is {options.episodes}; expected at least 1")
    options.out.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    sys.exit(main())
