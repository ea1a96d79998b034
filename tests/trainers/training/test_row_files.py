"""Files of demonstrations and tasks: all formats, all invalid rows, and what runs record."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict
from rich.console import Console
from tests.kit import Patch, assistant, calling, policy_of, system, tool, user
from tests.trainers.training.test_warm_up import settings
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl.rollouts import do_group_rollout

from evert import AgentClient, ChatAgentGroupBuilder, Recorder
from evert.bridge.errors import EvertError, InvalidDatasetError
from evert.bridge.groups.tasks import load_tasks
from evert.bridge.records import row_files
from evert.bridge.tokens.bases import base_tokenizer
from evert.bridge.tokens.renderer import prompt_renderer
from evert.trainers.config.demonstrations import describe, read_demonstrations
from evert.trainers.config.fields import DemonstrationsError
from evert.trainers.rundir.folder import WARM_UP, RunFolder
from evert.trainers.system.files import CHECKPOINTS, RunFolderError
from evert.trainers.training.resuming import check_folder, prepare_folder
from evert.trainers.training.warm_up import ConversationDatasetBuilder, data_of, load_demonstrations

HI, BYE = user("Hi"), assistant("Bye.")
LOOK = tool("look", description="Looks <|im_end|> around.")
SYSTEM, AGAIN = system("Be brief."), user("And <|im_end|>?")
CALL = {"name": "look", "arguments": '{"at": "x"}'}
USED: list[dict[str, Any]] = [
    SYSTEM,
    HI,
    {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": CALL}]},
    {"role": "tool", "tool_call_id": "c", "content": "a wall"},
    assistant("A wall."),
    AGAIN,
    BYE,
]
OLDER = [*USED[:2], {"role": "assistant", "content": None, "function_call": CALL},
         {"role": "function", "name": "look", "content": "a wall"}, *USED[4:]]  # fmt: skip
SHAREGPT = [
    *({"from": speaker, "value": text} for speaker, text in (
        ("human", "Hi"), ("function_call", json.dumps(CALL)), ("observation", "a wall"),
        ("gpt", "A wall."), ("human", AGAIN["content"]), ("gpt", "Bye."),
    )),
]  # fmt: skip
OBJECT = {"name": "look", "arguments": {"at": "x"}}
NO_ID = [*USED[:2], {"role": "assistant", "tool_calls": [{"function": OBJECT}]},
         {"role": "tool", "content": "a wall"}, *USED[4:]]  # fmt: skip
OTHER = tool("other", parameters={"type": "object", "properties": {"y": {"type": "integer"}}})


def lines(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def saved(folder: Path, *rows: Any, split: bool = False) -> str:
    made = Dataset.from_list([*rows])
    (DatasetDict({"train": made, "test": made}) if split else made).save_to_disk(str(folder))
    return str(folder)


def parquet(path: Path, *rows: Any) -> str:
    Dataset.from_list([*rows]).to_parquet(str(path))
    return str(path)


async def looks(client: AgentClient, task: float) -> float:
    """Make the calls from ``USED``, after a reply written by the agent itself; return the task."""
    messages: list[Any] = [SYSTEM, HI]
    tools = [LOOK]
    for sent in ({"role": "tool", "content": "a wall"}, AGAIN, None):
        completion = await client.chat.completions.create(messages=messages, tools=tools)
        reply = completion.choices[0].message
        if sent is not None:
            calls = [{"tool_call_id": call.id} for call in reply.tool_calls or ()]
            messages = [*messages, reply, {**sent, **(calls[0] if calls else {})}]
    return task


async def records(folder: Path, *tasks: float) -> str:
    recorder = Recorder(folder)
    for number, task in enumerate(tasks):
        policy = policy_of(calling("look", at="x"), "A wall.", "Bye.")
        builder = ChatAgentGroupBuilder(looks, task, group_size=1, record=recorder)
        builder.seed = number
        await do_group_rollout(builder, policy)
    return str(folder)


def learned(shown: Any, renderer_name: str = "qwen3_instruct") -> list[tuple[list[int], str]]:
    """For each datum of a conversation, return all of its tokens and the text it trains on."""
    renderer = get_renderer(renderer_name, base_tokenizer())
    data = []
    for datum in data_of(shown, prompt_renderer(renderer)):
        targets, weights = (
            datum.loss_fn_inputs[key].tolist() for key in ("target_tokens", "weights")
        )
        assert sum(weights) == pytest.approx(1.0)
        chosen = [token for token, weight in zip(targets, weights, strict=True) if weight]
        whole = [*datum.model_input.to_ints(), int(targets[-1])]
        data.append((whole, str(base_tokenizer().decode(chosen))))
    return data


async def test_a_conversation_gives_the_same_data_in_every_format(tmp_path: Path) -> None:
    tools = {"tools": [LOOK]}
    forms = {
        "openai": lines(tmp_path / "a.jsonl", {"messages": USED, **tools}),
        "older": lines(tmp_path / "b.jsonl", {"messages": OLDER, "functions": [LOOK["function"]]}),
        "without ids": lines(
            tmp_path / "c.jsonl", {"messages": NO_ID, "tools": json.dumps([LOOK])}
        ),
        "sharegpt": lines(
            tmp_path / "d.jsonl", {"system": "Be brief.", "conversations": SHAREGPT, **tools}
        ),
        "trl": lines(tmp_path / "e.jsonl", {"prompt": USED[:2], "completion": USED[2:], **tools}),
        "dataset": saved(
            tmp_path / "f", {"messages": USED, **tools}, {"messages": [HI, BYE], "tools": [OTHER]}
        ),
        "splits": saved(tmp_path / "g", {"messages": NO_ID, **tools}, split=True),
        "parquet": parquet(tmp_path / "h.parquet", {"messages": USED, **tools}),
        "records": await records(tmp_path / "i", 0.25, 1.0),
    }
    expected = [(expected_tokens, text)] = learned({"messages": USED, **tools})
    assert text == calling("look", at="x") + "<|im_end|>A wall.<|im_end|>Bye.<|im_end|>"
    assert expected_tokens.count(base_tokenizer().convert_tokens_to_ids("<|im_end|>")) == 7
    for form, path in forms.items():
        assert learned(read_demonstrations(path, 1.0)[0]) == expected, form
    texts = lines(tmp_path / "j.jsonl", {"prompt": "Hi", "completion": "Bye."})
    assert learned(read_demonstrations(texts, None)[0]) == learned([HI, BYE])


def test_each_reply_has_its_own_datum_if_the_renderer_changes_history() -> None:
    prompts = prompt_renderer(get_renderer("qwen3", base_tokenizer()))
    thought = {**BYE, "reasoning_content": "Hm."}
    data = learned({"messages": [HI, thought, HI, BYE]}, "qwen3")
    for (tokens, text), history in zip(data, ([HI], [HI, BYE, HI]), strict=True):
        prompt: list[Any] = prompts.full(history)  # type: ignore[arg-type]
        assert prompts.decode(tokens) == prompts.decode(prompt) + text
    assert ["Hm." in text for _, text in data] == [True, False]


async def test_skipped_rows_and_replies_are_counted(tmp_path: Path) -> None:
    bad = {"role": "assistant", "content": "BAD", "weight": 0}
    path = lines(
        tmp_path / "rows.jsonl",
        {"messages": [HI, bad, HI, {**BYE, "weight": 1}], "id": 7},
        {"prompt": [HI, assistant("BAD")], "completion": [BYE, HI]},
        {"messages": [HI, bad]},
        {"messages": [HI]},
        {"messages": [HI], "source": None},
        {"messages": USED},
    )
    rows = read_demonstrations(path, None)
    assert [text for row in rows[:2] for _, text in learned(row)] == ["Bye.<|im_end|>"] * 2
    assert describe(rows) == (
        "6 conversations; 3 skipped (nothing to learn); 1 repeated; 1 with messages after the "
        "last reply to learn from; 1 that call a tool missing from their list of tools; 1 with the "
        "field 'id', which is ignored"
    )
    played = await records(tmp_path / "records", 0.5, 1.0)
    assert [len(read_demonstrations(played, least)) for least in (1.0, 0.5, None)] == [1, 2, 2]
    with pytest.raises(DemonstrationsError, match="no rollout reaches warm_up_min_reward=2 "):
        read_demonstrations(played, 2.0)


REPLY = {"role": "assistant", "content": None}
BAD: list[tuple[str, Any, str]] = [
    ("a.jsonl", b"{}\n[\n", "line 1 has the fields ; expected messages, conversations, or"),
    ("b.jsonl", b'\n{"messages": [\n', "line 2 is not valid JSON (Expecting value"),
    ("c.jsonl", b'{"x": "\xff"}\n', "line 1 is not UTF-8"),
    ("d.jsonl", b"[" * 100_000, "line 1 is not valid JSON (maximum recursion"),
    ("e.jsonl", b" " * 20_000, "line 1 is longer than 10,000 bytes"),
    ("f.jsonl", 5, "line 1: the row is 5; expected an object"),
    ("g.jsonl", {"messages": []}, "line 1: messages is []; expected a list of"),
    ("h.jsonl", {"messages": [{**BYE, "weigth": 0}]}, "messages[0].weigth is 0; expected one of"),
    ("i.jsonl", {"messages": [{**BYE, "weight": 0.5}]}, "messages[0].weight is 0.5; expected 0 or"),
    ("j.jsonl", {"messages": [HI, REPLY]}, "messages[1].content is None; expected a string"),
    ("k.jsonl", {"messages": [{"role": "boss", "content": ""}, BYE]}, "messages[0] has role 'bo"),
    ("l.jsonl", {"messages": [HI, {**REPLY, "tool_calls": [{}]}]}, "messages[1].tool_calls[0] is"),
    ("m.jsonl", {"messages": [{**REPLY, "function_call": "f("}]}, "messages[0].function_call is '"),
    ("n.jsonl", {"messages": [*USED[:2], USED[3], BYE]}, "messages[2].tool_call_id is 'c'; exp"),
    ("o.jsonl", {"messages": [HI, BYE], "tools": [{}]}, "line 1: tools[0] is {}; expected"),
    ("p.jsonl", {"conversations": [{"from": "x"}]}, "line 1: conversations[0] is {'from': 'x'};"),
    ("q.jsonl", {"prompt": 1, "completion": ""}, "line 1: prompt is 1; expected a string or a"),
    ("r.csv", b"prompt,completion\na\n", "line 2 has too many or too few fields; expected 2: "),
    ("s.csv", b'prompt,completion\na,"b\n', "line 2 is not valid CSV: unexpected end of data"),
    ("t.csv", b"prompt,prompt\n", "line 1 has duplicate column names: prompt, prompt."),
    ("u.parquet", b"PAR1 no PAR1", "cannot be read"),
    ("v.jsonl", {"messages": [HI]}, "has 1 rows, but none of them contains a re"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "text"), BAD, ids=[row[0] for row in BAD])
def test_the_error_for_a_bad_row_has_its_file_line_and_field(
    name: str, content: Any, text: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(row_files, "LONGEST", 10_000 if name == "e.jsonl" else 2**24)
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    Path(name).write_bytes(data)
    with pytest.raises(DemonstrationsError) as raised:
        load_demonstrations(name)
    assert str(raised.value).startswith(name)
    assert text in str(raised.value)


def test_the_error_for_a_conversation_longer_than_the_context_names_it() -> None:
    prompts = prompt_renderer(None)
    assert data_of([HI, BYE], prompts, limit=20)
    with pytest.raises(
        DemonstrationsError, match=r"FILE, line 3 has \d+ tokens, but the model's limit is 9"
    ):
        data_of([HI, BYE], prompts, "FILE, line 3", limit=9)


async def test_the_rows_of_a_file_become_tasks(tmp_path: Path) -> None:
    rows = [{"q": "a, b", "n": "1"}, {"q": "ü\nc", "n": "2"}]
    with (tmp_path / "a.csv").open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, ["q", "n"])
        writer.writeheader()
        writer.writerows(rows)
    made = [
        str(tmp_path / "a.csv"),
        lines(tmp_path / "a.jsonl", *rows),
        parquet(tmp_path / "a.parquet", *rows),
        saved(tmp_path / "a", *rows),
    ]
    assert [load_tasks(path) for path in made] == [rows] * 4
    assert load_tasks(lines(tmp_path / "b.jsonl", 1, "x", None)) == [1, "x", None]
    opening = {"messages": [SYSTEM, HI], "tools": [LOOK]}
    assert load_tasks(await records(tmp_path / "records", 0.0, 1.0)) == [opening]
    (tmp_path / "c.jsonl").write_text("1\n{")
    with pytest.raises(InvalidDatasetError, match=r"c.jsonl, line 2 is not valid JSON"):
        load_tasks(str(tmp_path / "c.jsonl"))


def test_each_epoch_has_every_row_once_in_a_different_order(tmp_path: Path) -> None:
    rows = [{"prompt": "Hi", "completion": f"Number {n}."} for n in range(8)]
    path = lines(tmp_path / "rows.jsonl", *rows, {"messages": [HI]})
    made, _ = ConversationDatasetBuilder(
        demonstrations=path, steps=4, batch_size=4, seed=3, model_name="evert-tiny",
        renderer_name="qwen3_instruct",
    )()  # fmt: skip
    shown = [[tuple(datum.model_input.to_ints()) for datum in made.get_batch(n)] for n in range(4)]
    epochs = [shown[0] + shown[1], shown[2] + shown[3]]
    assert [len({*epoch}) for epoch in epochs] == [8, 8]
    assert epochs[0] != epochs[1]
    assert {*epochs[0]} == {*epochs[1]}


def test_a_run_records_its_files_and_refuses_changed_ones_on_resuming(tmp_path: Path) -> None:
    tasks = Path(lines(tmp_path / "tasks.jsonl", "a", "b"))
    shown = Path(lines(tmp_path / "shown.jsonl", {"prompt": "Hi", "completion": "Bye."}))
    chosen = settings(tmp_path, train_tasks=str(tasks), demonstrations=str(shown))
    folder = RunFolder(tmp_path / "run")
    (folder.path / WARM_UP).mkdir(parents=True)
    about = prepare_folder(folder, chosen, (), "embedded", Console(quiet=True))
    assert {*about["files"]} == {"train_tasks", "demonstrations"}
    check_folder(chosen)

    shown.write_text(shown.read_text() + "\n")
    with pytest.raises(RunFolderError, match=r"shown.jsonl has changed: sha256 \w{64} -> \w{64}"):
        check_folder(chosen)
    (folder.path / WARM_UP / CHECKPOINTS).write_text('{"name": "final", "batch": 2}\n')
    check_folder(chosen)  # the warm-up is already done
    tasks.unlink()
    with pytest.raises(EvertError, match="There is no file or folder"):
        check_folder(chosen)
