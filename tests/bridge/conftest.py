"""Fixtures: renderers of all families, and a server that stands in for the rest of the network."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import tinker_cookbook.renderers as cookbook
from tests.kit.renderers import FAMILIES, MakeRenderer, renderer_named
from tests.kit.serving import Elsewhere, served


@pytest.fixture
def make_renderer() -> MakeRenderer:
    return renderer_named


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> cookbook.Renderer:
    return renderer_named(request.param)


@pytest_asyncio.fixture
async def elsewhere() -> AsyncIterator[Elsewhere]:
    server = Elsewhere()
    async with served("/{path:.*}", server.answer) as address:
        server.url = f"{address}/v1"
        yield server
