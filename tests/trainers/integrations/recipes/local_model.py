"""A tiny base model that answers in boxes, so that the rewards of math recipes vary.

The bundled base model never writes ``\\boxed{}``, so all its answers would be wrong, and training
loops skip groups with constant rewards.
"""

import random
from pathlib import Path

import tinker
from tinker_cookbook import renderers
from tinker_cookbook.supervised.data import conversation_to_datum
from tinker_cookbook.tokenizer_utils import get_tokenizer

from evert.trainers.engine.embedded import embedded_engine

STEPS = 24
TASK = " Provide a numerical answer without units, written inside \\boxed{}."
SHOWN: list[renderers.Message] = [
    {"role": "user", "content": f"How many r's are in strawberry?{TASK}"},
    {
        "role": "assistant",
        "content": "Let's spell the word out and number all the letters: 1) s 2) t 3) r 4) a 5) w "
        "6) b 7) e 8) r 9) r 10) y. We have r's at positions 3, 8, and 9. \\boxed{3}",
    },
]
"""The first messages of the prompt in ``rl_loop``."""


def make_boxing_model(root: Path) -> str:
    """Train the bundled model to answer ``\\boxed{1}`` or ``\\boxed{2}``, and return its folder."""
    rng = random.Random(0)
    with embedded_engine(root, device="cpu") as engine:
        trainer = tinker.ServiceClient().create_lora_training_client("evert-tiny").result()
        renderer = renderers.get_renderer("role_colon", get_tokenizer("evert-tiny"))
        for _ in range(STEPS):
            trainer.forward_backward([_datum(renderer, rng) for _ in range(4)], "cross_entropy")
            trainer.optim_step(tinker.AdamParams(learning_rate=3e-3)).result()
        saved = trainer.save_weights_for_sampler("boxes").result()
        return str(engine.store.folder(saved.path))


def _datum(renderer: renderers.Renderer, rng: random.Random) -> tinker.Datum:
    question, answer = f"What is {rng.randrange(8)} + 1?{TASK}", f"\\boxed{{{rng.randint(1, 2)}}}"
    talk: list[renderers.Message] = [
        *SHOWN, {"role": "user", "content": question}, {"role": "assistant", "content": answer}
    ]  # fmt: skip
    last = renderers.TrainOnWhat.LAST_ASSISTANT_MESSAGE
    return conversation_to_datum(talk, renderer, 1024, last)
