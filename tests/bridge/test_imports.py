"""Import paths: what they name, and why they name nothing."""

import sys
from pathlib import Path

import pytest

from evert.bridge.errors import InvalidAgentError
from evert.bridge.import_paths import resolve


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file whose module can be imported as ``a_users_module``."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "a_users_module", raising=False)
    return tmp_path / "a_users_module.py"


def found(path: str) -> object:
    return resolve(path, "agent", InvalidAgentError)


def test_a_path_names_what_stands_in_a_module_dots_included(module: Path) -> None:
    module.write_text("class Agents:\n    first = 1\n")

    assert found("a_users_module:Agents.first") == 1


@pytest.mark.parametrize("path", ["agent", "a.module", ":agent", "module:"])
def test_what_is_no_path_is_told_what_one_looks_like(path: str) -> None:
    with pytest.raises(InvalidAgentError, match=r"expected an import path 'package\.module:name'"):
        found(path)


@pytest.mark.parametrize("path", ["no_such_module_at_all:agent", "json:no_such_name"])
def test_a_path_that_leads_nowhere_says_where_modules_are_looked_for(path: str) -> None:
    with pytest.raises(InvalidAgentError, match=f"No agent at '{path}': .*current folder"):
        found(path)


def test_a_module_that_fails_when_it_is_imported_is_an_error_with_its_place(module: Path) -> None:
    module.write_text("def key():\n    raise RuntimeError('Set the KEY variable')\n\n\nkey()\n")

    with pytest.raises(InvalidAgentError) as caught:
        found("a_users_module:agent")

    message = str(caught.value)
    assert "importing a_users_module raised RuntimeError: Set the KEY variable" in message
    assert f"(at {module}:2)" in message
    assert "if __name__ == '__main__':" in message
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_so_is_a_script_that_ends_the_process_when_it_is_imported(module: Path) -> None:
    module.write_text("import argparse\nargparse.ArgumentParser().parse_args(['--no-such'])\n")

    with pytest.raises(InvalidAgentError, match="raised SystemExit: 2"):
        found("a_users_module:agent")


def test_a_syntax_error_says_where(module: Path) -> None:
    module.write_text("def agent(client:\n")

    with pytest.raises(
        InvalidAgentError, match=r"raised SyntaxError: .*a_users_module\.py, line 1"
    ):
        found("a_users_module:agent")


MADE = """
class Player:
    from_path = True

    def __init__(self, name, *, level=0):
        self.name, self.level = name, level

    def again(self):
        return self


class Other:
    pass
"""


def test_a_class_that_says_so_may_be_made_with_literals(module: Path) -> None:
    module.write_text(MADE)
    player = found("a_users_module:Player('a:b(c)', level=-2)")

    assert (player.name, player.level) == ("a:b(c)", -2)  # type: ignore[attr-defined]
    assert found("a_users_module:Player('x').name") == "x"


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("Other()", "Other cannot be called in a path"),
        ("Player('x').again()", "again cannot be called in a path"),
        ("Player(open('x'))", "malformed node"),
        ("Player('x') or Other()", "neither a name nor a call with literals"),
        ("Player('x'", "is no expression"),
        ("Player(1, 2)", "takes 2 positional arguments"),
        ("Player(**{'name': 1})", "unexpected keyword argument"),
    ],
)
def test_a_path_has_nothing_else_done(module: Path, expression: str, problem: str) -> None:
    module.write_text(MADE)
    with pytest.raises(InvalidAgentError, match=problem):
        found(f"a_users_module:{expression}")


def test_a_path_calls_nothing_of_pythons_own() -> None:
    with pytest.raises(InvalidAgentError, match="system cannot be called in a path"):
        found("os:system('true')")
    with pytest.raises(InvalidAgentError, match="Popen cannot be called in a path"):
        found("subprocess:Popen(['true'])")
