"""evert's agents under other trainers, with the real packages.

    .frameworks/trainers/bin/python -m pytest tests/other_trainers --environment trainers

``frameworks/make_environment.py trainers`` creates the environment. The packages are not installed
in .venv, so without ``--environment`` none of these tests is collected. ``--environment vllm`` runs
in .venv and starts vLLM in a separate environment (``make served``).
"""

from pathlib import Path

import pytest

VLLM = "test_vllm.py"


def pytest_configure(config: pytest.Config) -> None:
    """Turn warnings into errors, except those that these packages raise when imported."""
    for category in ("DeprecationWarning", "FutureWarning", "UserWarning:verl"):
        config.addinivalue_line("filterwarnings", f"ignore::{category}")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    environment = config.getoption("environment")
    if collection_path.is_file() and (collection_path.name == VLLM) != (environment == "vllm"):
        return True
    return None if environment in ("trainers", "vllm") else True
