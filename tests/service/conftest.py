"""Tests that a Tinker service, at any address, provides what evert needs.

    make service BASE_URL=http://127.0.0.1:8000 [MODEL=...] [RENDERER=...]

Without ``--base-url`` none of these tests is collected; an unreachable service is a failure. The
API key is ``TINKER_API_KEY``, and most self-hosted servers accept any value. To start SkyRL's
server in its own environment (Python 3.12, 6.9 GB):

    pip install "skyrl[tinker,jax]==0.4.0" aiohttp loguru ray==2.57.0 httpx psutil uvicorn[standard]
    uv run -- python -m skyrl.tinker.api --base-model /models/evert-tiny --backend jax \\
        --backend-config '{"max_lora_adapters": 16, "max_lora_rank": 8}' --port 8000
"""

import os
from pathlib import Path

import pytest
import tinker

from evert.bridge.models.older_servers import complete_client

KEY = "tml-any"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--base-url", help="address of the service")
    parser.addoption("--model", help="what to train; default: the first that it names")
    parser.addoption("--renderer", help="the model's chat format; default: evert's base's")


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return None if config.getoption("--base-url", default=None) else True


@pytest.fixture(scope="session")
def base_url(pytestconfig: pytest.Config) -> str:
    """Patch the SDK in this process for the service, and return the service's address."""
    os.environ.setdefault("TINKER_API_KEY", KEY)
    url = str(pytestconfig.getoption("--base-url"))
    complete_client(url)
    return url


@pytest.fixture(scope="session")
def service(base_url: str) -> tinker.ServiceClient:
    """Return the SDK's client. Fails here if the service does not respond."""
    return tinker.ServiceClient(base_url=base_url)


@pytest.fixture(scope="session")
def model(service: tinker.ServiceClient, pytestconfig: pytest.Config) -> str:
    """Return the name of the model to train."""
    given = pytestconfig.getoption("--model")
    names = [each.model_name for each in service.get_server_capabilities().supported_models]
    name = given or next(filter(None, names), None)
    assert name, "the service names no model: give MODEL="
    return str(name)


@pytest.fixture(scope="session")
def renderer(model: str, pytestconfig: pytest.Config) -> str:
    """Return the name of the renderer for the model."""
    from tinker_cookbook import model_info

    from evert.bridge.tokens.bases import BASE_RENDERER

    if given := pytestconfig.getoption("--renderer"):
        return str(given)
    return (
        BASE_RENDERER if Path(model).is_dir() else model_info.get_recommended_renderer_name(model)
    )


@pytest.fixture(scope="session")
def trained(service: tinker.ServiceClient, model: str) -> tinker.TrainingClient:
    """Return a client that has taken one training step on a single datum."""
    client = service.create_lora_training_client(base_model=model, rank=8)
    ids = [5, 6, 7, 8, 9]
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={
            "target_tokens": tinker.TensorData(data=ids[1:], dtype="int64", shape=[4]),
            "weights": tinker.TensorData(data=[1.0] * 4, dtype="float32", shape=[4]),
        },
    )
    client.forward_backward([datum], "cross_entropy").result()
    client.optim_step(tinker.AdamParams(learning_rate=1e-2)).result()
    return client
