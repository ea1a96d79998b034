"""Damages a record as described in the table and checks what every reader of records reports."""

import asyncio
import copy
import io
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from tests.faults.records import CALL, TABLE, Damage, agent, reply, worth
from tests.faults.scene import is_as, line
from tests.kit import Shown

from evert import ChatAgentEnv, Recorder, ScriptedPolicy, explain, read_records, replay
from evert.bridge.env.parallel import do_parallel_rollout
from evert.bridge.errors import EvertError, RecordError
from evert.trainers.commands import export, rescore
from evert.trainers.rundir.export_formats import FORMATS


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Record two rollouts and return their lines."""

    async def play() -> None:
        for task in ("1 + 1?", "2 + 2?"):
            env = recorder.watch(ChatAgentEnv(agent, task))
            trajectory = await do_parallel_rollout(ScriptedPolicy(reply), env)
            recorder.add([trajectory], [env], about={"model": "none"})

    recorder = Recorder(tmp_path_factory.mktemp("whole") / "rollouts.jsonl")
    asyncio.run(play())
    return recorder.path.read_bytes().splitlines()


@contextmanager
def no_hang() -> Iterator[None]:
    signal.alarm(60)
    try:
        yield
    finally:
        signal.alarm(0)


async def replayed(path: Path) -> str:
    """Replay a file's last record and return the error, or "" if the rewards are the same."""
    try:
        record = [*read_records(path)][-1]
        trajectory = await replay(record, agent, agent_timeout=0.3)
    except EvertError as error:
        return line(error)
    same = [turn.reward for turn in trajectory.transitions] == [
        s["reward"] for s in record.row["steps"]
    ]
    return "" if same else "other rewards"


@pytest.mark.parametrize("damage", TABLE, ids=str)
def test_every_reader_reports_what_the_table_states(
    damage: Damage, lines: list[bytes], tmp_path: Path, capsys: Shown
) -> None:
    path, out = tmp_path / "rollouts.jsonl", tmp_path / "out.jsonl"
    path.write_bytes(b"\n".join([lines[0], damage.done(lines[1]), b""]))
    sees = f"RecordError: {damage.sees}" if damage.sees else ""

    with no_hang():
        assert is_as(asyncio.run(replayed(path)), sees or damage.replays)
        for main, arguments in (
            (export.main, []),
            (rescore.main, ["reward=tests.faults.records:worth"]),
        ):
            status = main([f"run={path}", f"out={out}", *arguments])
            printed = " ".join(capsys.readouterr().err.split())
            assert (status, out.exists()) == ((1, False) if sees else (0, True)), printed
            assert is_as(printed, f"…{damage.sees}" if sees else "…"), printed
            out.unlink(missing_ok=True)


VALUES: list[Any] = [
    None, True, -1, 0, 1, 3, 2**33, 10**400, 0.5, 1e308, float("nan"), float("-inf"), "", "x",
    "\ud800", "../..", "<think>", CALL, [], [[]], [0], ["x"], [None], {}, {"a": 1},
    {"type": "text"}, {"type": "image"}, {"role": "user"}, {"after": 0}, [{"role": "tool"}],
]  # fmt: skip


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all fields and list elements (only the first few of each list)."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = [*value.items()]
    elif isinstance(value, list):
        items = [*enumerate(value[:4])]
    for key, inner in items:
        yield (*place, key)
        yield from places(inner, (*place, key))


def damaged(data: st.DataObject, line: bytes) -> bytes:
    kind = data.draw(st.sampled_from(["cut", "flip", "drop", *["put"] * 4]))
    if kind in ("cut", "flip"):
        at = data.draw(st.integers(0, len(line) - 1))
        tail = b"" if kind == "cut" else bytes([data.draw(st.integers(0, 255))]) + line[at + 1 :]
        return line[:at] + tail
    row: Any = copy.deepcopy(json.loads(line))
    *way, last = data.draw(st.sampled_from([*places(row)]))
    at = row
    for key in way:
        at = at[key]
    if kind == "drop":
        del at[last]
    else:
        at[last] = data.draw(st.sampled_from(VALUES))
    return json.dumps(row).encode()


def use(path: Path) -> None:
    """Use a file's records in every possible way."""
    for record in read_records(path):
        turns = range(record.turns)
        assert isinstance(repr(record) + record.text, str)
        assert isinstance(worth(record), float)
        assert all(isinstance(record.asked(turn) + record.tools(turn), list) for turn in turns)
        for rows in FORMATS.values():
            assert json.dumps([*rows([record, record], lambda why: None)])
        explain(record.trajectory(), console=Console(file=io.StringIO()))


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_a_damaged_record_is_reported_or_harmless(
    data: st.DataObject, lines: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "rollouts.jsonl"
    path.write_bytes(b"\n".join([lines[0], damaged(data, lines[1]), b""]))

    with no_hang():
        with suppress(RecordError):
            use(path)
        asyncio.run(replayed(path))
