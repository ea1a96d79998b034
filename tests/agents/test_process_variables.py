"""A command only sees the secrets passed with ``env=``, which are redacted in its output."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.agents.test_process import error_of, last_of, play, python
from tests.agents.test_process_folder import output
from tests.kit import Patch

from evert.agents.variables import harmless
from evert.bridge.errors import InvalidAgentError

SECRETS = {
    "TINKER_API_KEY": "tml-sentinel-0001",
    "AWS_SECRET_ACCESS_KEY": "wJalr/sentinel+0002",
    "GITHUB_TOKEN": "ghp_sentinel0003",
    "OPENAI_API_KEY": "sk-sentinel-0004",
    "DATABASE_URL": "postgres://me:sentinel-0005@host/db",
    "HTTPS_PROXY": "http://me:sentinel-0006@proxy:80",
    "LC_PASSWORD": "sentinel-0007",
    "MY_SETTING": "sentinel-0008",
}
OUTSIDE = os.path.realpath(sys.executable)
"""The base interpreter. Unlike that of a virtual environment, it reads user site-packages."""

SHOW = "import json, os; print(json.dumps(dict(os.environ)))"


@pytest.fixture
def secrets(monkeypatch: Patch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("secrets")
async def test_a_command_its_setup_and_its_judge_see_no_secrets() -> None:
    seen: list[str] = []

    def read(result: Any, task: Any) -> float:
        seen.extend([result.stdout, (result.folder / "of_setup").read_text()])
        return 1.0

    into = "import json, os; open('of_setup', 'w').write(json.dumps(dict(os.environ)))"
    await play(python(f"{SHOW}; ask('x')", setup=[sys.executable, "-c", into], reward=read))
    last = await last_of(python("ask('x')", reward=[sys.executable, "-c", SHOW, "{folder}"]))

    for text in (*seen, str(last.logs["reward_stdout"])):
        assert "EVERT_MODEL" in text
        assert "sentinel" not in text


async def test_a_command_gets_path_a_home_and_its_own_temporary_folder() -> None:
    code = """
import tempfile
ask("x")
print(json.dumps([dict(os.environ), tempfile.gettempdir(), os.getcwd()]))
"""
    variables, temporary, folder = json.loads(await output(python(code)))
    scratch = Path(folder).parent

    assert variables["PATH"] == os.environ["PATH"]
    assert Path(variables["HOME"]).parent == scratch
    assert Path(temporary).parent == scratch
    assert not scratch.exists()


async def test_a_locale_is_passed_on_only_if_it_is_set(monkeypatch: Patch) -> None:
    for name in ("LANG", "LC_ALL", "LC_CTYPE"):
        monkeypatch.delenv(name, raising=False)
    show = ["sh", "-c", "env | grep -c '^LC_CTYPE'; true", "{folder}"]
    agent = python("ask('x')", reward=show)
    counts = [(await last_of(agent)).logs["reward_stdout"]]
    monkeypatch.setenv("LC_CTYPE", "C.UTF-8")
    counts.append((await last_of(agent)).logs["reward_stdout"])

    assert counts == ["0\n", "1\n"]


@pytest.mark.usefixtures("secrets")
async def test_env_passes_on_the_referenced_variables() -> None:
    code = "ask('x'); print(os.environ['SETTING'], os.environ['WHOLE'], 'MY_SETTING' in os.environ)"
    env = {"SETTING": "{env[MY_SETTING]}", "WHOLE": "<{env[MY_SETTING]}>"}

    assert await output(python(code, env=env)) == "sentinel-0008 <sentinel-0008> False\n"


async def test_the_error_for_an_unset_variable_names_it(monkeypatch: Patch) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    error = await error_of(python("", env={"A": "{env[NOT_SET]}"}))

    assert isinstance(error.__cause__, InvalidAgentError)
    assert "env=... uses {env[NOT_SET]}, but the environment variable NOT_SET is not set" in (
        str(error)
    )


@pytest.mark.usefixtures("secrets")
async def test_env_placeholders_are_not_replaced_in_tasks_commands_or_files() -> None:
    placeholder = "{env[MY_SETTING]}"
    code = "import sys; ask('x'); print(sys.argv[1], open('a').read(), os.environ['TASK'])"
    agent = python(code, placeholder, files={"a": placeholder}, env={"TASK": "{task}"})

    assert await output(agent, task=placeholder) == f"{placeholder} {placeholder} {placeholder}\n"


def test_a_proxy_is_passed_on_unless_its_url_has_credentials() -> None:
    proxies = {"https_proxy": "http://proxy:80", "HTTP_PROXY": "http://me:word@proxy:80"}
    variables = harmless({**proxies, "NO_PROXY": "localhost"})

    assert variables.items() >= {"https_proxy": "http://proxy:80", "NO_PROXY": "localhost"}.items()
    assert "HTTP_PROXY" not in variables


def test_programs_that_look_in_the_home_folder_still_work(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    rust, volta = tmp_path / ".rustup", tmp_path / "elsewhere"
    rust.mkdir()
    volta.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    variables = harmless({"VOLTA_HOME": str(volta)})

    assert (variables["RUSTUP_HOME"], variables["VOLTA_HOME"]) == (str(rust), str(volta))
    assert "ASDF_DATA_DIR" not in variables


async def test_user_site_packages_are_found(tmp_path: Path) -> None:
    module = tmp_path / "lib" / f"python3.{sys.version_info.minor}" / "site-packages" / "theirs.py"
    module.parent.mkdir(parents=True)
    module.write_text("answer = 42")
    show = [OUTSIDE, "-c", "import theirs; print(theirs.answer)", "{folder}"]
    agent = python("ask('x')", reward=show, env={"PYTHONUSERBASE": str(tmp_path)})

    assert (await last_of(agent)).logs["reward_stdout"] == "42\n"


@pytest.mark.usefixtures("secrets")
async def test_secrets_passed_by_env_are_redacted_in_logs_and_errors() -> None:
    env = {"GITHUB_TOKEN": "{env[GITHUB_TOKEN]}", "MY_PASSWORD": "given-in-code-9"}
    code = "import sys; print(*(os.environ[name] for name in sys.argv[1:]))"
    agent = python(f"{code}; ask('x')", *env, env=env)
    failing = python(f"{code}; raise SystemExit(1)", *env, "OPENAI_API_KEY", env=env)

    assert await output(agent) == "[GITHUB_TOKEN] [MY_PASSWORD]\n"
    assert "stdout '[GITHUB_TOKEN] [MY_PASSWORD] [ROLLOUT_KEY]'" in str(await error_of(failing))
