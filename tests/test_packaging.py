"""Everything we publish: packages, their description, texts for coding agents, and workflows.

(``make wheel`` builds and installs the packages.)
"""

import re
import runpy
import shutil
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import setuptools  # type: ignore[import-untyped]
import yaml  # type: ignore[import-untyped]
from setuptools.dist import Distribution  # type: ignore[import-untyped]

import evert
from evert.bridge.tokens.bases import BASES

ROOT = Path(__file__).resolve().parents[1]
FACE = ROOT / "src" / "evert"
FOLDERS = ("bridge", "envs", "trainers")
REPOSITORY = "https://github.com/evert-rl/evert"


def setup_arguments(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the arguments that a checkout's ``setup.py`` passes to setuptools."""
    arguments: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **keywords: arguments.update(keywords))
    runpy.run_path(str(checkout / "setup.py"))
    return arguments


def test_the_wheel_contains_all_files_except_the_base_training_scripts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = setup_arguments(ROOT, monkeypatch)
    distribution = Distribution({"script_name": "setup.py", **arguments})
    distribution.parse_config_files([str(ROOT / "pyproject.toml")])
    build = distribution.get_command_obj("build_py")
    build.ensure_finalized()
    with chdir(ROOT):
        outputs = build.get_outputs(include_bytecode=False)
    built = {str(Path(output).relative_to(build.build_lib)) for output in outputs}
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]

    assert {f"evert/{path.relative_to(ROOT)}" for path in files if path.suffix != ".pyc"} <= built
    starters = [path for path in (FACE / "starters").rglob("*.*") if path.suffix != ".pyc"]
    assert {f"evert/{path.relative_to(FACE)}" for path in starters} <= built
    assert {"evert/__init__.py", "evert/__init__.pyi", "evert/py.typed"} <= built
    assert {path.split("/")[2] for path in built if path.startswith("evert/bases/")} == {*BASES}


def test_an_editable_install_uses_one_path_or_a_mapping_if_there_are_no_symlinks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src/evert").mkdir(parents=True)
    for file in ("setup.py", "pyproject.toml", "README.md", "src/evert/__init__.py"):
        shutil.copy(ROOT / file, tmp_path / file)
    for name in FOLDERS:  # where symlinks are not supported, git writes them as text files
        (tmp_path / "src/evert" / name).write_text(f"../../{name}")

    assert setup_arguments(ROOT, monkeypatch)["package_dir"] == {"": "src"}
    mapped = {"": "src"} | {f"evert.{name}": name for name in FOLDERS}
    assert setup_arguments(tmp_path, monkeypatch)["package_dir"] == mapped


def test_links_in_the_description_are_urls_for_this_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = setup_arguments(ROOT, monkeypatch)["long_description"]
    version = f"v{evert.__version__}"

    assert f"]({REPOSITORY}/raw/{version}/docs/real.png)" in text
    assert f"]({REPOSITORY}/blob/{version}/benchmarks/README.md#gpupy)" in text
    assert "](docs/" not in text
    assert text.count(f"{REPOSITORY}/blob/{version}/docs/") > 20


def test_agents_md_and_llms_txt_are_up_to_date_and_short() -> None:
    texts = runpy.run_path(str(ROOT / "docs/for_agents.py"))["texts"]()

    stale = [name for name, text in texts.items() if (ROOT / name).read_text() != text]
    assert stale == [], "Run: python docs/for_agents.py"
    assert len(texts["AGENTS.md"].splitlines()) <= 80
    title, _, summary, *lines = texts["llms.txt"].splitlines()  # the format from llmstxt.org
    assert (title, summary[:2]) == ("# evert", "> ")
    links = [line for line in lines if line.startswith("- ")]
    assert all(re.match(r"- \[[^]]+\]\(https://\S+\): \S", line) for line in links)
    pages = {*re.findall(r"\(https://evert-rl.github.io/evert/(\S*)\)", "".join(links))}
    files = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert pages == {f"{path.with_suffix('')}/" for path in files} - {"index/"} | {""}


WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_existing_targets_pins_actions_and_has_few_permissions(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    [phony] = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    jobs = workflow["jobs"].values()
    steps = [step for job in jobs for step in job["steps"]]
    runs = "\n".join(step.get("run", "") for step in steps)
    matrices = [job["strategy"]["matrix"] for job in jobs if "strategy" in job]
    targets = [target for matrix in matrices for target in matrix.get("target", ())]
    made = re.findall(r"^make ([\w-]+)", runs, re.MULTILINE)  # not a target from a matrix
    made += [word for target in targets for word in target.split() if "=" not in word]
    needs = [need for job in jobs for need in [job.get("needs")] if need]

    assert made
    assert {*made} <= {*phony.split()}
    assert {*needs} <= {*workflow["jobs"]}
    assert all(re.fullmatch(r"[\w/-]+@(v\d+|release/v1)", s["uses"]) for s in steps if "uses" in s)
    assert workflow["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in jobs)
