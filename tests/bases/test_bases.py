"""Guarantees shared by all bundled base models: tokenizer, corpus, files, training script."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from bases import training
from bases.__main__ import corpus_of, main, tokenizer_of
from bases.dialogues import DialogueExample
from bases.tokenizer import CONTROL, MARKERS
from hypothesis import given
from hypothesis import strategies as st
from tests.bases.conftest import rendered
from tinker_cookbook.renderers import Message, ToolCall, ToolSpec, get_renderer
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM

from evert.bridge.tokens.bases import BASE_RENDERER, BASES, base_path, base_tokenizer

all_bases = pytest.mark.parametrize("base", BASES)
TOKENIZER = base_tokenizer()
CONTROL_IDS = set(TOKENIZER.convert_tokens_to_ids(list(CONTROL)))
LARGEST = {"evert-tiny": 5_000_000, "evert-tiny-20q": 5_000_000, "evert-tiny-moves": 2_500_000}


def config_of(base: Any, **given: Any) -> training.MakingConfig:
    return training.MakingConfig(**{"out": "", "base": base, "steps": 2, **given})


def encode(text: str, tokenizer: Any = TOKENIZER) -> list[int]:
    """Encode text the way the Cookbook renderers encode message content."""
    return list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))


@given(st.text() | st.lists(st.sampled_from([*CONTROL, "<|im_", "start|>", " "])).map("".join))
def test_any_text_round_trips_without_control_tokens(text: str) -> None:
    for base in BASES:
        tokenizer = base_tokenizer(base)
        tokens = encode(text, tokenizer)
        assert tokenizer.decode(tokens) == text, base
        assert not CONTROL_IDS.intersection(tokens), base


def test_control_tokens_are_special_and_markers_are_not() -> None:
    added = {token.content: token for token in TOKENIZER.added_tokens_decoder.values()}
    assert {text for text, token in added.items() if token.special} == set(CONTROL)
    assert {text for text, token in added.items() if not token.special} == set(MARKERS)
    assert all(len(encode(marker)) == 1 for marker in MARKERS)
    assert (TOKENIZER.eos_token, TOKENIZER.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert [TOKENIZER.decode([t]) for t in encode("Guess: 512")] == ["Guess", ": ", "5", "1", "2"]


@all_bases
def test_the_script_reproduces_the_shipped_tokenizer(base: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(config_of(base))
    tokenizer.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (base_path(base) / name).read_bytes(), name


ADD: ToolSpec = {
    "name": "add",
    "description": 'Adds "two" numbers.',
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
CALL = ToolCall(id="1", function=ToolCall.FunctionBody(name="add", arguments='{"a": 3, "b": "x"}'))
CONVERSATION: list[Message] = [
    {"role": "user", "content": "\n What is\n\n1 + 2? "},
    {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": "3", "tool_call_id": "1"},
    {"role": "tool", "content": "4\n", "tool_call_id": "2"},
    {"role": "assistant", "content": "Once more.", "tool_calls": [CALL]},
    {"role": "tool", "content": "", "tool_call_id": "3"},
    {"role": "assistant", "content": "Done, é 1024."},
    {"role": "user", "content": "Too low"},
]


def test_the_chat_template_matches_the_cookbook_renderer() -> None:
    renderer: Any = get_renderer(BASE_RENDERER, TOKENIZER)
    tool_lists: list[list[ToolSpec]] = [[], [ADD], [ADD, ADD]]
    for length, system, tools in product(range(1, 9), (None, "Be brief."), tool_lists):
        opening: list[Message] = [{"role": "system", "content": system}] if system else []
        messages = rendered = opening + CONVERSATION[:length]
        if tools:
            prefix = renderer.create_conversation_prefix_with_tools(tools, system or "")
            rendered = prefix + CONVERSATION[:length]
        templated = TOKENIZER.apply_chat_template(
            [renderer.to_openai_message(message) for message in messages],
            tools=[{"type": "function", "function": tool} for tool in tools] or None,
            add_generation_prompt=True,
            return_dict=False,
        )
        expected = renderer.build_generation_prompt(rendered).to_ints()
        assert templated == expected, (length, system, tools)


@all_bases
def test_a_base_is_small_and_its_card_explains_how_it_was_made(base: str) -> None:
    card = (base_path(base) / "README.md").read_text()
    config = json.loads((base_path(base) / "config.json").read_text())
    tokenizer = base_tokenizer(base)

    assert sum(path.stat().st_size for path in base_path(base).iterdir()) < LARGEST[base]
    assert card.startswith("---\n")
    assert "python -m bases out=FOLDER" in card
    assert base == "evert-tiny" or f"base={base}" in card
    assert config["vocab_size"] == len(tokenizer)
    assert config["eos_token_id"] == tokenizer.eos_token_id


CORPORA = {
    "evert-tiny": "dd502751efb67120", "evert-tiny-20q": "3bf0e3114e067f8b",
    "evert-tiny-moves": "26c27256fa56959f",
}  # fmt: skip
"""Digest of each base model's training data: tokens and targets of the first steps with seed 0.

If you change a corpus, retrain the base model and check the new data. Games must be legal and
played without a strategy. The odds at each position must give every matching noun a probability.
Held-out nouns must not appear.
"""


def examples_of(base: str, seed: int = 0) -> Iterator[DialogueExample]:
    """Yield the training examples of the first steps, with and without habit players."""
    for habits in (False, True):
        corpus = corpus_of(config_of(base, seed=seed, habits=habits), base_tokenizer(base))
        for whole_games in (False, True) * 3:
            for batch in corpus.step(whole_games=whole_games):
                yield from batch.examples


def digest(examples: Iterable[DialogueExample]) -> str:
    found = hashlib.sha256()
    for each in examples:
        targets = [
            {place: [f"{value:.3f}" for value in values] for place, values in sorted(by.items())}
            for by in (each.soft_targets, each.odds)
        ]
        found.update(json.dumps([each.tokens, each.loss_mask, *targets]).encode())
    return found.hexdigest()[:16]


@all_bases
def test_a_corpus_depends_only_on_its_seed_and_renders_to_the_same_tokens(base: str) -> None:
    examples, tokenizer = [*examples_of(base)], base_tokenizer(base)
    assert digest(examples) == CORPORA[base] != digest(examples_of(base, seed=1))
    assert all(rendered(tokenizer, each) == each.tokens for each in examples[::20])


@pytest.mark.nightly
@all_bases
def test_the_script_makes_a_base_with_its_card(
    base: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(config_of(base, out=str(tmp_path), measured_games=4))

    assert base in capsys.readouterr().out
    assert "steps=2 seed=0 measured_games=4" in (tmp_path / "README.md").read_text()
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(model, Qwen3ForCausalLM)
    assert len(AutoTokenizer.from_pretrained(tmp_path)) == model.config.vocab_size


@pytest.mark.nightly
def test_the_same_seed_gives_the_same_weights() -> None:
    weights = []
    for _ in range(2):
        torch.manual_seed(0)
        model = training.make_model(TOKENIZER)
        config = config_of("evert-tiny", warm_up=1.0)
        training.train(model, corpus_of(config, TOKENIZER), config)
        weights.append(torch.cat([parameter.flatten() for parameter in model.parameters()]))
    assert torch.equal(*weights)
