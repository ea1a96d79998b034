"""``evert view``: its index, responses, access control and security."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit import Patch, Shown
from tests.trainers.kit import copy_of

from evert import RolloutRecord, read_records
from evert.trainers.commands import view
from evert.trainers.episodes.scores import half_of
from evert.trainers.reporting.run import read_run
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.rundir.metrics import TRAIN_REWARD
from evert.trainers.viewing import asking
from evert.trainers.viewing.answers import ANSWERS
from evert.trainers.viewing.incremental_index import Index, holds_episodes
from evert.trainers.viewing.lines import entries
from evert.trainers.viewing.pieces import load_tokenizer, tokenizer_file
from evert.trainers.viewing.server import HEADERS, Viewer

NEVER = threading.Event()


@contextmanager
def indexed(*paths: Path, database: Path) -> Iterator[Index]:
    index = Index(paths, database)
    index.look(NEVER)
    yield index
    index.close()


class Page:
    """A client that has the link's token, like a browser."""

    def __init__(self, client: TestClient[Any, Any], viewer: Viewer) -> None:
        self.client, self.viewer = client, viewer

    async def get(self, name: str, **query: Any) -> Any:
        answer = await self.client.get(f"/api/{name}", params=query)
        assert answer.status == 200, await answer.text()
        return await answer.json()


@asynccontextmanager
async def opened(*paths: Path, database: Path) -> AsyncIterator[Page]:
    viewer = Viewer(Index(paths, database))
    viewer.index.look(NEVER)
    viewer.start()
    allowed = {"Authorization": f"Bearer {viewer.token}"}
    async with TestClient(TestServer(viewer.app()), headers=allowed) as client:
        yield Page(client, viewer)
    viewer.stop()


async def test_a_run_is_shown_with_its_rewards_and_recorded_episodes(
    finished: RunFolder, tmp_path: Path
) -> None:
    run, records = read_run(finished.path), [*read_records(finished.path)]
    async with opened(finished.path.parent, database=tmp_path / "index") as page:
        [listed] = (await page.get("runs"))["runs"]
        of = await page.get("run", run=listed["id"])
        trained = [stage for stage in of["stages"] if stage["split"] == "train"]
        step = await page.get("step", run=listed["id"], split="train", model="", step=2)
        [said] = {each.text for each in records[-1:]}
        found = await page.get("search", words=said)
    assert (listed["name"], listed["steps"], listed["finished"]) == (finished.path.name, 3, True)
    assert listed["recorded"] == len(records) == 3 * 4  # one group of four per step
    assert listed["reward"]["values"] == pytest.approx(run.curve(TRAIN_REWARD).scores, abs=1e-6)
    assert [each["reward"] for each in trained] == pytest.approx(run.curve(TRAIN_REWARD).scores)
    assert [(each["groups"], each["episodes"], each["recorded"]) for each in trained] == 3 * [
        (4, 16, 4)
    ]
    kinds = [each["kind"] for each in step["episodes"]]
    assert (kinds.count("recorded"), kinds.count("summary")) == (4, 12)
    assert {panel["section"] for panel in of["panels"]} >= {"reward", "episodes", "policy"}
    assert set(of["time"]) == {"sampling", "training", "held-out scores", "the rest"}
    assert found["episodes"]


async def test_an_episode_is_served_in_full_with_its_tokens_as_text(
    finished: RunFolder, tmp_path: Path
) -> None:
    async with opened(finished.path, database=tmp_path / "index") as page:
        ids = asking.episodes(page.viewer.index, 1, "train", "", 0)
        episodes = [await page.get("episode", id=each["id"]) for each in ids[:4]]
        samples = asking.episodes(page.viewer.index, 1, "test", "", -1)
        sample = await page.get("episode", id=samples[0]["id"])
    for record, found in zip(read_records(finished.path), episodes, strict=False):
        assert found["row"] == json.loads(json.dumps(record.row))
        assert RolloutRecord(found["row"]).reward == found["entry"]["reward"]
        for step, texts in zip(found["row"]["steps"], found["pieces"], strict=True):
            assert len(texts) == len(step["tokens"])
            assert "".join(texts).startswith(step["text"])
        assert [each["id"] for each in found["group"]] == [each["id"] for each in ids[:4]]
        assert found["entry"]["id"] in {each["id"] for each in found["same"]}
    assert sample["row"]["steps"][0]["logs"]["told"]
    assert {each["step"] for each in sample["same"]} == {-1, 2**31}


def row(number: int, said: str = "yes") -> dict[str, Any]:
    step = {"ob_len": 3, "ac_len": 2, "reward": 1.0, "metrics": {}, "logs": {}, "text": said}
    return {"split": "train", "iteration": 0, "group_idx": number, "traj_idx": 0, "steps": [step],
            "total_reward": float(number), "evert_schema": 1, "task": said}  # fmt: skip


def seen(index: Index) -> list[tuple[Any, ...]]:
    found = index.ask("SELECT grp, reward, said, file FROM episodes ORDER BY file, place")
    broken = index.ask("SELECT path, broken FROM files ORDER BY path")
    words = [len(asking.search(index, said)) for said in ("yes", "no")]
    rows = sorted((each["grp"], each["reward"], each["said"]) for each in found)
    return [*rows, *((each["path"], each["broken"]) for each in broken), (*words,)]


CHANGES = st.sampled_from(["whole", "half", "broken", "anew", "gone", "look"])


@settings(deadline=None)
@given(st.lists(st.tuples(CHANGES, st.integers(0, 2), st.booleans()), max_size=12))
def test_updating_an_index_gives_the_same_result_as_rebuilding_it(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, int, bool]]
) -> None:
    home = tmp_path_factory.mktemp("index")
    (home / "run" / "rollouts").mkdir(parents=True)
    with indexed(home, database=home / "kept") as kept:
        for number, (change, name, is_yes) in enumerate(changes):
            file = home / "run" / "rollouts" / f"{name:06}.jsonl"
            line = json.dumps(row(number, "yes" if is_yes else "no")) + "\n"
            if change in ("whole", "half", "broken"):
                with file.open("a") as out:
                    cut = {"whole": len(line), "half": len(line) // 2, "broken": 0}[change]
                    out.write(line[:cut] or "{}\n")
            elif change == "anew":
                file.write_text(line)
            elif change == "gone":
                file.unlink(missing_ok=True)
            else:
                kept.look(NEVER)
        kept.look(NEVER)
        with indexed(home, database=home / "new") as new:
            assert seen(kept) == seen(new)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=5), inside),
    max_leaves=5,
)


@given(st.data())
def test_any_line_is_either_an_episode_or_a_broken_line(data: Any) -> None:
    whole = row(1)
    of: Any = data.draw(st.sampled_from([whole, whole["steps"][0], {"before": whole}]))
    of[data.draw(st.sampled_from([*of]))] = data.draw(ANYTHING)
    try:
        found = entries(json.dumps(of if "before" in of else whole).encode())
    except ValueError:
        return
    assert all(isinstance(each.reward, float) and isinstance(each.said, str) for each in found)


async def test_damaged_or_missing_files_are_listed_and_the_rest_is_shown(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "rollouts").mkdir(parents=True)
    file = run / "rollouts" / "000000.jsonl"
    file.write_text(f"{json.dumps(row(1))}\n[1]\n{json.dumps(row(2))}\n")
    (run / "metrics.jsonl").write_text('{"step": 0, "progress": NaN, "a": Infinity}\n{"st')
    (run / "run.json").write_text('{"name": "\\ud800", "settings": {"a": NaN, "steps": []}}')
    (run / "result.json").write_text('{"held_out": {"before": [], "after": {"temperature_1": 3}}}')
    (run / "before.json").write_text('{"scores": {"temperature_1": {"reward": "x"}}}')
    (run / "batches.jsonl").write_text(
        '{"kinds": {"a": "b", "c": 2}, "found": 3}\n{"found": [[{}]]}'
    )
    async with opened(tmp_path, database=tmp_path / "index") as page:
        [listed] = (await page.get("runs"))["runs"]
        assert (listed["episodes"], listed["broken"]) == (2, 1)
        assert listed["scores"] == {"before": None, "after": None}
        await page.get("run", run=1)
        ids = [each["id"] for each in asking.episodes(page.viewer.index, 1, "train", "", 0)]
        file.write_text("x")
        wrong: Any = (
            {"id": ids[0]},
            {"id": "x"},
            {"id": 10**30},
            {"run": 9},
            {"run": 1, "step": "x"},
            {},
        )
        for name in ("episode", "run", "step", "metric", "search"):
            for query in wrong:
                answer = await page.client.get(f"/api/{name}", params=query)
                assert answer.status in (200, 404), (name, query)
        for words in ('"', "\0", "*", "a OR", "NEAR(", "\ud800", "é" * 999):
            await page.get("search", words=words.encode("utf-8", "replace").decode())


def _named_in_no_utf8(run: Path) -> None:
    run.rename(os.fsdecode(os.fsencode(run.parent) + b"/m\xff"))


def _deep(run: Path) -> None:
    deep = "[" * 1000 + "]" * 1000
    line = json.dumps(row(1, "deep") | {"about": {"model": 0}, "task": None})
    (run / "rollouts.jsonl").write_text(line.replace("0}", deep + "}") + "\n")
    (run / "run.json").write_text(f'{{"settings": {{"models": {deep[50:-50]}}}}}')


def _pipes_and_devices(run: Path) -> None:
    for name in ("run.json", "before.json", "metrics.jsonl", "rollouts/1.jsonl"):
        os.mkfifo(run / name)
    for name in ("result.json", "evaluation.json", "batches.jsonl", "rollouts/2.jsonl"):
        (run / name).symlink_to("/dev/zero")


def _numbers_beyond_all_floats(run: Path) -> None:
    huge = "1" + "0" * 400
    metrics = '"progress": 1, "env/all/reward/total": {0}, "time/total": {0}}}\n'
    lines = (f'{{"step": {step}, ' + metrics.format(huge) for step in (0, huge))
    (run / "metrics.jsonl").write_text("".join(lines))


def _links_in_circles(run: Path) -> None:
    for number in range(12):
        (run.parent / f"again{number}").symlink_to(run.parent)


def _settings_of_other_types(run: Path) -> None:
    settings: Any = {"steps": "x", "env": {}, "model_name": [1], "max_steps": None}
    (run / "run.json").write_text(json.dumps({"name": None, "settings": settings, "started": 3}))


@pytest.mark.parametrize(
    "spoil",
    [
        _named_in_no_utf8,
        _deep,
        _pipes_and_devices,
        _numbers_beyond_all_floats,
        _links_in_circles,
        _settings_of_other_types,
    ],
)
async def test_a_hostile_folder_hides_no_other_run(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    for name in ("before", "mad", "then"):
        (tmp_path / "runs" / name / "rollouts").mkdir(parents=True)
    for name in ("before", "then"):
        (tmp_path / "runs" / name / "rollouts" / "0.jsonl").write_text(json.dumps(row(1)) + "\n")
    spoil(tmp_path / "runs" / "mad")
    async with opened(tmp_path / "runs", database=tmp_path / "index") as page:
        listed = (await page.get("runs"))["runs"]
        assert [(await page.get("run", run=each["id"]))["id"] for each in listed]
    whole = sorted(each["name"] for each in listed if each["episodes"])
    assert whole == ["before", "then"]


def test_a_line_that_is_completed_while_reading_is_read_completely(tmp_path: Path) -> None:
    file, line = tmp_path / "rollouts.jsonl", json.dumps(row(2)) + "\n"
    file.write_text(json.dumps(row(1)) + "\n" + line[:40])

    class Meanwhile(threading.Event):
        def is_set(self) -> bool:
            if not file.read_bytes().endswith(b"\n"):
                with file.open("a") as out:
                    out.write(line[40:])
            return False

    with indexed(database=tmp_path / "index") as index:
        index._paths = [file]
        index.look(Meanwhile())
        assert [each[0] for each in seen(index)[:2]] == [1, 2]


def test_a_file_is_read_up_to_an_endless_line_which_the_page_reports(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("evert.trainers.viewing.incremental_index.LONGEST_LINE", 1000)
    mad = tmp_path / "a.jsonl"
    mad.write_text(json.dumps(row(1)) + "\n" + "x" * 3000 + "\n" + json.dumps(row(3)) + "\n")
    (tmp_path / "b.jsonl").write_text(json.dumps(row(2)) + "\n")
    with indexed(mad, tmp_path / "b.jsonl", database=tmp_path / "index") as index:
        assert [each[0] for each in seen(index)[:2]] == [1, 2]
        assert "larger than 32 MB" in index.troubles[mad]
        mad.write_text(json.dumps(row(4)) + "\n")
        index.look(NEVER)
        assert not index.troubles


def test_an_index_is_readable_only_by_its_user(tmp_path: Path) -> None:
    with indexed(database=tmp_path / "index"):
        for file in tmp_path.glob("index*"):
            assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "change",
    [
        {"decoder": {"type": "Replace", "pattern": {"String": ""}, "content": "z" * 1000}},
        {"decoder": {"type": "Replace", "pattern": {"Regex": "(x+x+)+y"}, "content": "z"}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},  # panics in Rust
        {"model": [[]]},
    ],
)
def test_a_hostile_tokenizer_is_not_loaded(tmp_path: Path, change: dict[str, Any]) -> None:
    file = tokenizer_file("evert-tiny", tmp_path)
    assert file is not None
    whole = json.loads(file.read_text())
    for name, of in {"good": whole, "mad": whole | change}.items():
        (tmp_path / name).write_text(json.dumps(of))
        assert (load_tokenizer(tmp_path / name) is None) is (name == "mad")


def test_looking_up_a_tokenizer_works_with_any_name(tmp_path: Path) -> None:
    for name in ("~no-such-user/model", "\0", "a" * 5000, "../" * 99, "no/such-model"):
        assert tokenizer_file(name, tmp_path) is None, name


async def test_requests_without_the_token_are_refused(finished: RunFolder, tmp_path: Path) -> None:
    viewer = Viewer(Index([finished.path], tmp_path / "index"))
    allowed = f"Bearer {viewer.token}"
    async with TestClient(TestServer(viewer.app())) as client:
        for name in ("state", *ANSWERS):
            for wrong in ("", "Bearer ", allowed[:-1], f"{allowed}x", "Bearer \xff", viewer.token):
                page = f"/api/{name}?token={viewer.token}"
                answer = await client.get(page, headers={"Authorization": wrong})
                assert (answer.status, "evert view" in await answer.text()) == (403, True), page
        for host in ("evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.x"):
            assert (await client.get("/", headers={"Host": host})).status == 421
        viewer.start()
        for page in ["/", "/view.js", "/uplot.js", "/view.css", "/api/state", "/none", "/api/none"]:
            answer = await client.get(page, headers={"Authorization": allowed})
            assert "Set-Cookie" not in answer.headers
            assert answer.status == (404 if "none" in page else 200)
            assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        for path in ("/..%2fserver.py", "/assets/view.js", "/%2e%2e/lines.py"):
            assert (await client.get(path)).status == 404
        for method in ("post", "put", "delete"):
            assert (await client.request(method, "/api/state")).status == 405
    viewer.stop()


async def test_the_viewer_shows_no_secret_and_does_not_write_to_the_run(
    finished: RunFolder, tmp_path: Path, monkeypatch: Patch
) -> None:
    run = copy_of(finished, tmp_path / "run").path
    secret = "sk-proj-abcdefghijklmnop123456"
    file = next((run / "rollouts").iterdir())
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[0]["steps"][0]["text"] = f"my key is {secret}"
    lines[0]["task"] = "x" * 190 + secret  # cut by the preview
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    facts = run / "run.json"
    facts.write_text(facts.read_text().replace('"name": "identity"', f'"name": "{secret}"'))
    monkeypatch.setenv("OPENAI_API_KEY", secret)
    before = {each: each.stat() for each in run.rglob("*")}
    async with opened(run, database=tmp_path / "index") as page:
        answers = [await page.get("runs"), await page.get("run", run=1)]
        answers.append(await page.get("step", run=1, split="train", model="", step=0))
        answers += [
            await page.get("episode", id=each["id"]) for each in answers[-1]["episodes"][:4]
        ]
        answers.append(await page.get("search", words="my key is"))
    assert secret not in json.dumps(answers)
    assert "[OPENAI_API_KEY]" in json.dumps(answers)
    kept = b"".join(each.read_bytes() for each in tmp_path.glob("index*"))  # noqa: ASYNC240
    assert b"my key is" in kept
    assert b"abcdefghijklmnop123456" not in kept
    assert b"sk-proj" not in kept
    after = {each: each.stat() for each in run.rglob("*")}
    assert after.keys() == before.keys()
    assert all(
        (after[each].st_mtime_ns, after[each].st_size) == (was.st_mtime_ns, was.st_size)
        for each, was in before.items()
    )


def test_two_viewers_can_run_and_each_serves_until_ctrl_c(
    finished: RunFolder, tmp_path: Path
) -> None:
    (tmp_path / "evert").mkdir()
    (tmp_path / "evert" / "view-1-old.sqlite").touch()
    os.utime(tmp_path / "evert" / "view-1-old.sqlite", (0, 0))
    command = [sys.executable, "-m", "evert.trainers.cli", "view", str(finished.path.parent)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}

    @contextmanager
    def started() -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as one:
            try:
                yield one
            finally:
                one.kill()

    with started() as first, started() as second:
        for process in (first, second):
            assert process.stdout is not None
            link = process.stdout.readline().strip()
            assert b"view.js" in urllib.request.urlopen(link).read()
            address, _, token = link.partition("?token=")
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(f"{address}api/runs")
            allowed = {"Authorization": f"Bearer {token}"}
            urllib.request.urlopen(urllib.request.Request(f"{address}api/runs", headers=allowed))
        port = link.rpartition(":")[2].partition("/")[0]
        taken = subprocess.run(
            [*command, f"port={port}"], capture_output=True, text=True, env=environment
        )
        assert taken.returncode == 1
        assert f"cannot be served at 127.0.0.1:{port}" in taken.stderr
        assert "Choose a different port=" in taken.stderr
        for process in (first, second):
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
    kept = [each.name for each in (tmp_path / "evert").iterdir()]
    assert len([name for name in kept if name.endswith(".sqlite")]) == 1


def test_a_mistyped_path_or_setting_is_refused_immediately(tmp_path: Path, capsys: Shown) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "README.md").write_text("# Runs\n\nThese are they.")
    for words, said in (
        ([str(tmp_path / "README.md")], "README.md contains no rollouts: none of its first"),
        ([str(tmp_path / "README.md")], "Pass a run, an evaluation, a folder of either"),
        ([str(tmp_path / "run")], f"Did you mean {tmp_path / 'runs'}?"),
        ([str(tmp_path / "runs"), "prot=1"], "There is no setting 'prot'"),
        ([str(tmp_path / "runs"), "port=70000"], "port must be from 0 to 65535"),
    ):
        assert view.main(words) == 1
        assert said in capsys.readouterr().err


def test_the_viewer_imports_neither_pytorch_nor_the_cookbook() -> None:
    code = "import sys, evert.trainers.commands.view, evert.trainers.viewing.server as server; "
    code += "print({'torch', 'tinker_cookbook', 'matplotlib', 'transformers'} & {*sys.modules})"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


def test_a_rollout_file_may_be_empty_or_start_with_a_broken_line(tmp_path: Path) -> None:
    file, line = tmp_path / "rollouts.jsonl", json.dumps(row(1)) + "\n"
    for content, holds in (("", True), ("{}\n" + line, True), (line[:40], False), ("[1]\n", False)):
        file.write_text(content)
        assert holds_episodes(file) is holds, content


def test_a_damaged_index_is_rebuilt(finished: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "index").write_bytes(b"no database" * 1000)
    with indexed(finished.path, database=tmp_path / "index") as index:
        assert asking.counts(index)[1]["recorded"] == 12


def damage(database: Path, table: str) -> None:
    with closing(sqlite3.connect(database)) as there:
        [[page]] = there.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", [table])
        [[size]] = there.execute("PRAGMA page_size")
    with database.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)


@pytest.mark.parametrize("table", ["files", "by_step"])  # noticed by a scan or by a query
async def test_an_index_with_a_damaged_page_is_rebuilt_when_the_damage_is_noticed(
    finished: RunFolder, tmp_path: Path, table: str
) -> None:
    database = tmp_path / "index"
    with indexed(finished.path, database=database):
        pass
    damage(database, table)
    async with opened(finished.path, database=database) as page:
        while (await page.client.get("/api/runs")).status != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        while (await page.get("runs"))["runs"][0]["recorded"] != 12:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert (await page.get("state"))["trouble"] == ""


def test_an_index_that_could_not_be_rebuilt_is_rebuilt_on_the_next_scan(
    finished: RunFolder, tmp_path: Path, monkeypatch: Patch
) -> None:
    database, opens = tmp_path / "index", Index._open
    with indexed(finished.path, database=database):
        pass
    damage(database, "files")
    full = [sqlite3.OperationalError("the disk is full")]

    def opens_later(index: Index) -> None:
        if full:
            raise full.pop()
        opens(index)

    index = Index([finished.path], database)
    monkeypatch.setattr(Index, "_open", opens_later)
    with pytest.raises(sqlite3.OperationalError, match="full"):
        index.look(threading.Event())
    index.look(threading.Event())
    assert asking.counts(index)[1]["recorded"] == 12
    index.close()


async def test_an_open_page_shows_new_episodes_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "run" / "rollouts").mkdir(parents=True)
    async with opened(tmp_path, database=tmp_path / "index") as page:
        version = (await page.get("state"))["version"]
        with (tmp_path / "run" / "rollouts" / "000000.jsonl").open("a") as out:
            out.write(json.dumps(row(1)) + "\n")
        while (await page.get("state"))["version"] == version:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        while not (await page.get("runs"))["runs"][0]["episodes"]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def test_an_episode_can_be_compared_with_the_first_and_last_episode_of_its_task(
    tmp_path: Path,
) -> None:
    rows = [row(1) | {"iteration": step} for step in range(300)]
    (tmp_path / "rollouts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    with indexed(tmp_path, database=tmp_path / "index") as index:
        [entry] = index.ask("SELECT * FROM episodes WHERE step = 150")
        steps = [each["step"] for each in asking.same_task(index, entry)]
    assert steps == [*range(100), *range(200, 300)]


REWARDS = st.lists(
    st.lists(st.floats(-9, 9) | st.sampled_from([1e308, -1e308]), min_size=1, max_size=4),
    min_size=1, max_size=6,
)  # fmt: skip


@settings(deadline=None, max_examples=30)
@given(REWARDS)
def test_the_viewer_shows_the_intervals_of_the_score_tables(
    tmp_path_factory: pytest.TempPathFactory, rewards: list[list[float]]
) -> None:
    folder = tmp_path_factory.mktemp("run")
    rows = [
        row(group) | {"total_reward": reward}
        for group, members in enumerate(rewards)
        for reward in members
    ]
    file = folder / "rollouts.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in rows))
    with indexed(folder, database=folder / "index") as index:
        [shown] = asking.steps(index, *index.runs)

    wanted = half_of(rewards)
    assert (shown["half"] is None) == (wanted is None)
    if wanted is not None and max(map(abs, chain(*rewards))) < 10:
        assert shown["half"] == pytest.approx(wanted, abs=1e-9)
