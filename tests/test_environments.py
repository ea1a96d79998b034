"""``frameworks``: the Python version for an environment, and the package indexes it uses."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FRAMEWORKS = Path(__file__).parent.parent / "frameworks"

OTHER = "3.99"
"""A Python version that does not exist."""


@pytest.fixture
def python_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], str]:
    """Return ``python_for``, with an empty PATH and an empty pyenv in ``tmp_path``."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.syspath_prepend(FRAMEWORKS)
    script = runpy.run_path(str(FRAMEWORKS / "make_environment.py"))
    script["PYTHONS"].update(other=OTHER, same=".".join(map(str, sys.version_info[:2])))
    function: Callable[[str], str] = script["python_for"]
    return function


def write_python(path: Path, *, works: bool) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nexit {int(not works)}\n")
    path.chmod(0o755)
    return str(path)


def test_an_environment_uses_this_python_or_one_from_path_or_pyenv(
    python_for: Callable[[str], str], tmp_path: Path
) -> None:
    pyenvs = tmp_path / "pyenv/versions" / f"{OTHER}.1" / "bin/python"

    assert python_for("openai3") == python_for("same") == sys.executable
    with pytest.raises(SystemExit) as ended:
        python_for("other")
    assert ended.value.code == (
        f"The other environment requires Python {OTHER}, but there is no python{OTHER} on the PATH "
        f"or under {tmp_path / 'pyenv'}. Install it (pyenv install {OTHER}) and run this again."
    )
    assert write_python(tmp_path / f"python{OTHER}", works=True) == python_for("other")
    write_python(tmp_path / f"python{OTHER}", works=False)
    assert write_python(pyenvs, works=True) == python_for("other")


def test_uv_uses_pips_indexes_and_environment_variables_override_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nindex-url = https://a/simple\nextra-index-url = https://b/simple https://c/simple\n"
        "cert = /from/file.pem\ntimeout = 9\n"
    )
    for name in ("INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("PIP_CERT", "/from/variable.pem")

    assert runpy.run_path(str(FRAMEWORKS / "run_uv.py"))["from_pip"]() == {
        "UV_DEFAULT_INDEX": "https://a/simple",
        "UV_INDEX": "https://b/simple https://c/simple",
        "SSL_CERT_FILE": "/from/variable.pem",
    }
