"""Import paths: which objects they can refer to, and the errors for invalid paths."""

import sys
from pathlib import Path

import pytest
from tests.kit import Patch

from evert.bridge.errors import InvalidAgentError
from evert.bridge.import_paths import resolve

MADE = """
class Player:
    from_path = True

    def __init__(self, name, *, level=0):
        self.name, self.level = name, level

    def again(self):
        return self


class Other:
    first = 1
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: Patch) -> Path:
    """Create a module that can be imported as ``a_users_module``, and return its path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "a_users_module", raising=False)
    (tmp_path / "a_users_module.py").write_text(MADE)
    return tmp_path / "a_users_module.py"


def found(path: str) -> object:
    return resolve(path, "agent", InvalidAgentError)


def test_an_import_path_can_call_a_class_with_literals(module: Path) -> None:
    player = found("a_users_module:Player('a:b(c)', level=-2)")

    assert (player.name, player.level) == ("a:b(c)", -2)  # type: ignore[attr-defined]
    assert found("a_users_module:Player('x').name") == "x"
    assert found("a_users_module:Other.first") == 1


def test_the_error_mentions_a_file_that_is_shadowed_by_an_installed_module(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("json.py").write_text("agent = print")
    with pytest.raises(InvalidAgentError, match="which takes precedence over json.py in"):
        found("json:agent")


FORM = r"expected an import path 'package\.module:name'"
OURS = "a_users_module:"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        *[(path, FORM) for path in ("", "agent", "a.module", ":agent", "module:")],
        ("no_such_module_at_all:x", "No agent at 'no_such_module_at_all:x': .*current folder"),
        ("json:no_such_name", "No agent at 'json:no_such_name': .*current folder"),
        ("..:x", r"No agent at '\.\.:x': "),
        (f"{OURS}Other()", "Other cannot be called in a path"),
        (f"{OURS}Player('x').again()", "again cannot be called in a path"),
        (f"{OURS}Player(open('x'))", "malformed node"),
        (f"{OURS}Player('x') or Other()", "neither a name nor a call with literals"),
        (f"{OURS}Player('x'", "is not a valid expression"),
        (f"{OURS}Player(1, 2)", "takes 2 positional arguments"),
        (f"{OURS}Player(**{{'name': 1}})", "unexpected keyword argument"),
        ("os:system('true')", "system cannot be called in a path"),
        ("subprocess:Popen(['true'])", "Popen cannot be called in a path"),
    ],
)
def test_an_invalid_path_or_call_is_rejected(module: Path, path: str, said: str) -> None:
    with pytest.raises(InvalidAgentError, match=said):
        found(path)


def test_the_error_for_a_failing_import_shows_its_location(module: Path) -> None:
    for source, message in (
        ("import argparse\nargparse.ArgumentParser().parse_args(['--no'])\n", "SystemExit: 2"),
        ("def agent(client:\n", rf"SyntaxError: .*\)\. Fix the syntax error in {module}, line 1\."),
        ("import not_there\n", rf"ModuleNotFoundError: .* \(at {module}:1\)\. Fix that import"),
        ("from json import not_there\n", rf"ImportError: .* \(at {module}:1\)\. Fix that im"),
        ("None.missing\n", rf"AttributeError: .* \(at {module}:1\)\. Importing a module runs it"),
        ("def key():\n    raise RuntimeError('Set KEY')\n\n\nkey()\n", "RuntimeError: Set KEY"),
    ):
        module.write_text(source)
        with pytest.raises(InvalidAgentError, match=f"a_users_module raised {message}") as caught:
            found("a_users_module:agent")
    assert f"(at {module}:2)" in str(caught.value)
    assert "if __name__ == '__main__':" in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)
