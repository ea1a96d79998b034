"""evert's agents under other trainers, with the real packages.

    .frameworks/trainers/bin/python -m pytest tests/other_trainers --environment trainers

``frameworks/make_environment.py trainers`` makes the environment. Without ``--environment`` nothing
here is collected: the packages are not in .venv. ``--environment vllm`` is .venv with vLLM beside
it (``make served``).
"""

from pathlib import Path

import pytest

VLLM = "test_vllm.py"


def pytest_configure(config: pytest.Config) -> None:
    """Make warnings errors, except for those of these packages while they are imported."""
    for category in ("DeprecationWarning", "FutureWarning", "UserWarning:verl"):
        config.addinivalue_line("filterwarnings", f"ignore::{category}")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    environment = config.getoption("environment")
    if collection_path.is_file() and (collection_path.name == VLLM) != (environment == "vllm"):
        return True
    return None if environment in ("trainers", "vllm") else True
