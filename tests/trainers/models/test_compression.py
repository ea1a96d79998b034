"""``examples/compression.py``: two models learn together, in ``make compression`` at length."""

import json
from pathlib import Path
from runpy import run_path

import pytest
from tinker_cookbook.utils.ml_log import JsonLogger

from evert.trainers.engine.embedded import embedded_engine

EXAMPLE = Path(__file__).parents[3] / "examples" / "compression.py"


@pytest.mark.nightly
async def test_both_models_get_better(tmp_path: Path) -> None:
    with embedded_engine(tmp_path / "store", device="cpu", full_parameter=False, threads=1):
        await run_path(str(EXAMPLE))["main"](JsonLogger(tmp_path), seed=0, steps=3)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    first, last = rows[0], rows[-1]
    assert last["compressor/reward"] > first["compressor/reward"] + 3
    assert last["reconstructor/gain"] > first["reconstructor/gain"] + 3
