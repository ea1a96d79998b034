"""Recorded conversations, once exported for chat trainers, render to the sampled tokens."""

from pathlib import Path
from typing import Any

import pytest
from tests.kit import ask, assistant, call, play_recorded, tool, user
from tests.kit.renderers import FAMILIES, renderer_named
from tests.trainers.kit import make_tokenizer
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.renderers.base import Message, Renderer, ToolCall
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import ChatAgentEnv, Recorder, RolloutRecord, ScriptedPolicy, read_records
from evert.bridge.env.pending import GIVEN_UP
from evert.bridge.tokens.template import TemplateRenderer
from evert.trainers.rundir.export_formats import FORMATS

LOOK = tool("look")
JSON = {"type": "json_object"}
TEMPLATE = """{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}
{% endif %}Tools:{% for t in tools %}
{{ t | tojson }}{% endfor %}<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}{%- for m in messages %}{% if m.role != 'system' %}<|im_start|>{{ m.role }}
{{ m.content }}{% for k in m.tool_calls or [] %}<tool_call>
{"name": {{ k.function.name | tojson }}, "arguments": {{ k.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def template_renderer() -> TemplateRenderer:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return TemplateRenderer(tokenizer)


class AsTheRenderer(TokenCompleter):
    """A policy that replies with a call to ``look`` or with text, tokenised by the renderer."""

    def __init__(self, renderer: Renderer, *replies: str) -> None:
        self.renderer, self.replies = renderer, [*replies]

    async def __call__(self, model_input: Any, stop: Any, **options: Any) -> TokensWithLogprobs:
        """Return the tokens of the next reply."""
        message = Message(role="assistant", content=self.replies.pop(0))
        if message["content"] == "CALL":
            body = ToolCall.FunctionBody(name="look", arguments='{"at": "x"}')
            call = ToolCall(id="functions.look:0", function=body)
            message = Message(role="assistant", content="", tool_calls=[call])
        before = [Message(role="user", content="?")]
        whole = self.renderer.build_supervised_example([*before, message])[0].to_ints()
        tokens = whole[self.renderer.build_generation_prompt(before).length :]
        return TokensWithLogprobs(tokens, [-0.5] * len(tokens), "stop")


async def converses(client: Any) -> None:
    """Make three model calls, and send back results for any tool calls."""
    messages: list[Any] = [{"role": "developer", "content": "Be brief."}, user("Look.")]
    for _ in range(3):
        completion = await call(client, *messages, **client.options)
        message = completion.choices[0].message
        messages.append(message)
        results = [{"role": "tool", "tool_call_id": tool_call.id, "content": "ok"}
                   for tool_call in message.tool_calls or ()]  # fmt: skip
        messages += results or [user("And now?")]


CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "plain": ({}, ["One.", "Two.", "Three."]),
    "tools": ({"tools": [LOOK]}, ["CALL", "Two.", "CALL"]),
    "forced": ({"tools": [LOOK], "tool_choice": "required"}, ["CALL", "No.", "CALL", "CALL"]),
    "format": ({"response_format": JSON}, ["{}", "red", "[", "{}", "{}"]),
}


async def record_of(path: Path, renderer: Renderer, case: str) -> RolloutRecord:
    options, replies = CASES[case]

    async def agent(client: Any) -> float:
        client.options = options
        await converses(client)
        return 1.0

    policy = AsTheRenderer(renderer, *replies)
    return (await play_recorded(path, agent, policy, renderer=renderer))[0]


def tokens_of(row: dict[str, Any], renderer: Renderer) -> list[int]:
    """Render the prompt of the last reply with the run's renderer or chat template."""
    *messages, _ = row["messages"]
    if "tools" not in row:
        return renderer.build_generation_prompt(messages).to_ints()
    text = renderer.tokenizer.apply_chat_template(
        messages, row["tools"], tokenize=False, add_generation_prompt=True
    )
    return list(renderer.tokenizer.encode(text, add_special_tokens=False))


RETOKENISED = {"deepseekv3_thinking", "nemotron3"}
"""Renderers that tokenise a reply differently once it is part of the history."""
RETOKENISED_CALLS = RETOKENISED | {
    "qwen3_5", "qwen3_5_preserve_thinking", "nemotron3_preserve_thinking",
}  # fmt: skip
ONLY_FIELDS = {"kimi_k2", "kimi_k26_preserve_thinking", "gpt_oss_no_sysprompt"}
"""Renderers that change sampled text in the history. The Cookbook cannot read calls from a file."""
LEFT_OUT = {
    "plain": RETOKENISED,
    "tools": RETOKENISED_CALLS | ONLY_FIELDS,
    "forced": RETOKENISED_CALLS | ONLY_FIELDS,
    "format": RETOKENISED | ONLY_FIELDS | {"role_colon"},
}
NO_CALLS = {"llama3", "role_colon", "deepseekv3", "deepseekv3_thinking"}
PLAYED = [
    (name, case)
    for name in ("template", *FAMILIES)
    for case in CASES
    if name not in NO_CALLS or case in ("plain", "format")
]


@pytest.mark.filterwarnings("ignore:use_system_prompt")
@pytest.mark.parametrize(("name", "case"), PLAYED)
async def test_exports_render_to_the_sampled_prompt(tmp_path: Path, name: str, case: str) -> None:
    renderer = template_renderer() if name == "template" else renderer_named(name)
    record, left_out = await record_of(tmp_path, renderer, case), list[str]()
    rows = [*FORMATS["sft"]([record], left_out.append)]

    assert bool(left_out) == (name in LEFT_OUT[case])
    assert [tokens_of(row, renderer) for row in rows] == [record.prompts[-1]] * (not left_out)


async def test_exported_tools_and_calls_have_the_fields_that_chat_templates_expect(
    tmp_path: Path,
) -> None:
    record = await record_of(tmp_path, template_renderer(), "tools")
    [row] = FORMATS["sft"]([record], print)

    called, result = row["messages"][2:4]
    assert row["tools"] == [
        {"type": "function", "function": {"description": "", **LOOK["function"]}}
    ]
    assert called["tool_calls"][0]["function"] == {"name": "look", "arguments": {"at": "x"}}
    assert result == {"role": "tool", "content": "ok", "name": "look",
                      "tool_call_id": called["tool_calls"][0]["id"]}  # fmt: skip


class Hurried(ChatAgentEnv):
    """An Env that injects a message into the first prompt, like a rollout hook would."""

    async def initial_observation(self) -> Any:
        await super().initial_observation()
        return await self.inject_messages([Message(role="user", content="Hurry.")])


async def test_a_prefill_and_a_hooks_message_are_part_of_the_conversation(tmp_path: Path) -> None:
    async def agent(client: Any) -> float:
        await client.anthropic.messages.create(
            model="policy", max_tokens=50, messages=[user("A fruit?"), assistant("I like")]
        )
        return 1.0

    recorder = Recorder(tmp_path / "rollouts.jsonl")
    env = recorder.watch(Hurried(agent))
    recorder.add([await do_single_rollout(ScriptedPolicy([" pears."]), env)], [env])
    [record] = read_records(recorder.path)
    [row] = FORMATS["sft"]([record], print)

    assert row["messages"] == [user("A fruit?"), user("Hurry."), assistant("I like pears.")]
    prompt = env.renderer.build_generation_prompt(row["messages"][:-1], prefill="I like")
    assert prompt.to_ints() == record.prompts[0]


async def test_a_given_up_call_is_left_out_of_chats_but_marked_in_trajectories(
    tmp_path: Path,
) -> None:
    async def agent(client: Any) -> float:
        reply = await ask(client, "One?")
        await ask(client, user("One?"), assistant(reply), user("Two?"))
        return 1.0

    record_kept, _ = await play_recorded(tmp_path, agent, "1", "2")
    [given_up] = FORMATS["sft"]([record_kept], print)
    record_kept.row["steps"][1]["metrics"][GIVEN_UP] = 1.0
    record_kept.row["steps"][1]["reply"] = None
    record = RolloutRecord(record_kept.row)

    assert [len(row["messages"]) for row in (given_up, *FORMATS["sft"]([record], print))] == [4, 2]
    rows = FORMATS["atif"]([record], print)
    extras = [[step.get("extra") for step in row["steps"]] for row in rows]
    assert extras == [[None, None], [None, None, None, {"given_up": True}]]


async def test_an_exported_trajectory_includes_retried_replies(tmp_path: Path) -> None:
    record = await record_of(tmp_path, template_renderer(), "format")
    [row] = FORMATS["atif"]([record], print)

    sampled = [step for step in row["steps"] if "metrics" in step]
    assert [step["metrics"]["completion_token_ids"] for step in sampled] == [
        record.action(turn).tokens for turn in range(5)
    ]
    assert [step.get("extra") for step in sampled] == [
        None, {"format_error": True}, {"format_error": True}, None, None,
    ]  # fmt: skip
    texts = [step["message"] for step in row["steps"] if step["source"] == "user"]
    assert texts[1] == "Answer with one JSON object and nothing else."
    assert texts[3].startswith("Your answer is not JSON")


async def test_a_trajectory_can_be_exported_from_a_record_without_versions(tmp_path: Path) -> None:
    record = await record_of(tmp_path, template_renderer(), "format")
    damaged = RolloutRecord({**record.row, "versions": {}})
    [row] = FORMATS["atif"]([damaged], print)
    assert row["agent"]["version"] == "unknown"
