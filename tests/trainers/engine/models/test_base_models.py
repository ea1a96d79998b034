"""Models: what loading one needs is imported before threads could race for it."""

import subprocess
import sys
from pathlib import Path

RACE = """
import sys, tinker
from evert import embedded_engine
from tinker_cookbook.tokenizer_utils import get_tokenizer
with embedded_engine(sys.argv[2], device="cpu", threads=1):
    before = set(sys.modules)
    sampler = tinker.ServiceClient().create_sampling_client(base_model=sys.argv[1])
    tokens = get_tokenizer(sys.argv[1]).encode("hi")  # while the loader thread loads the model
    params = tinker.SamplingParams(max_tokens=1)
    assert sampler.sample(tinker.ModelInput.from_ints(tokens), 1, params).result().sequences
print([name for name in set(sys.modules) - before if name.startswith("transformers.")])
"""


def test_what_transformers_imports_lazily_is_there_before_two_threads_use_it(
    tiny_model: str, tmp_path: Path
) -> None:
    # A process of its own: here everything is imported already.
    command = [sys.executable, "-c", RACE, tiny_model, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr[-2000:]
