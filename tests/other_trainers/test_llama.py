"""llama.cpp's server serves the bundled base model, and evert samples from it."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tinker
from tests.other_trainers.gguf_base import write_gguf
from tests.other_trainers.served_checks import check_log_probabilities, evaluated

from evert.bridge.tokens.bases import base_path, base_tokenizer
from evert.trainers.serving.client import ServedSamplingClient
from evert.trainers.serving.errors import UnfitServerError
from evert.trainers.serving.policy import ServedPolicy

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start the server with evert-tiny; yield its address."""
    file = tmp_path_factory.mktemp("gguf") / "evert-tiny.gguf"
    write_gguf(base_path("evert-tiny"), file)
    command = [sys.executable, str(HERE / "llama_server.py"), str(file)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        yield f"{server.stdout.readline().strip()}/v1"
        server.stdin.close()


@pytest.mark.parametrize(("episodes", "temperature"), [(64, 1.0), (16, 0.5)])
def test_llama_cpp_gives_the_same_log_probabilities_as_the_engine(
    base_url: str, tmp_path: Path, episodes: int, temperature: float
) -> None:
    assert check_log_probabilities(base_url, tmp_path, episodes, temperature)


def test_an_evaluation_on_llama_cpp_agrees_with_one_on_the_engine(
    base_url: str, tmp_path: Path
) -> None:
    rows = evaluated(base_url, tmp_path / "out", "seeds=16", "threads=1")
    served, engine = ({k: float(v or 0) for k, v in row.items()} for row in rows.values())

    assert served["episodes"] == engine["episodes"] > 300
    assert served["low"] < engine["high"]  # the 95% intervals overlap
    assert engine["low"] < served["high"]
    assert 0.02 < served["success"] < 0.98


def test_a_reply_ends_at_the_requested_stop(base_url: str) -> None:
    prompt = tinker.ModelInput.from_ints([504, 373, 198, 39, 72, 505, 198, 504, 420, 198])
    client = ServedSamplingClient(base_url, "evert-tiny")
    [plain], [cut] = [
        client.sample(prompt, 1, tinker.SamplingParams(max_tokens=8, temperature=0, stop=stop))
        .result()
        .sequences
        for stop in (None, [72])
    ]

    assert plain.tokens[:2] == cut.tokens == [39, 72]
    assert cut.stop_reason == plain.stop_reason == "stop"


def test_a_wrong_tokenizer_is_refused_at_the_first_call(base_url: str) -> None:
    other = base_tokenizer("evert-tiny-20q")
    policy = ServedPolicy(base_url, "evert-tiny", tokenizer=other)

    with pytest.raises(UnfitServerError, match=r"our tokenizer \(evert-tiny-20q\).*tokenizer="):
        asyncio.run(policy(tinker.ModelInput.from_ints([1]), []))
