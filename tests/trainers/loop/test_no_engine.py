"""``evert.models`` without an engine raises an error."""

import pytest
from tests.kit import Patch

import evert
from evert import InvalidModelError


async def test_models_need_an_engine_or_a_key(monkeypatch: Patch) -> None:
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    with pytest.raises(
        InvalidModelError, match="models needs an engine, but TINKER_API_KEY is not set"
    ):
        await evert.models("evert-tiny", ("one", "two"))
