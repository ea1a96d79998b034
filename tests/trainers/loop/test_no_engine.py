"""``evert.models`` without an engine."""

import pytest
from tests.kit import Patch

import evert
from evert import InvalidModelError


async def test_models_need_an_engine_or_a_key(monkeypatch: Patch) -> None:
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    with pytest.raises(InvalidModelError, match="models found no engine: no TINKER_API_KEY is set"):
        await evert.models("evert-tiny", ("one", "two"))
