"""Stand-ins: a script that names a Hub model runs with a local model, and a log message says so."""

import logging
from pathlib import Path

import pytest
from tests.kit import Logs
from tinker_cookbook import model_info, renderers, tokenizer_utils
from transformers import AutoTokenizer

from evert.bridge.tokens.bases import base_path
from evert.trainers.engine.common.errors import ModelNotFoundError
from evert.trainers.engine.embedded import embedded_engine
from evert.trainers.engine.models.stand_ins import StandIns

NAMED = "Qwen/Qwen3-8B"


SOME = {"Qwen/*-20q": "evert-tiny-20q", "Qwen/*": "evert-tiny"}


@pytest.mark.parametrize(
    ("patterns", "name", "expected"),
    [
        (SOME, "Qwen/a-20q", "evert-tiny-20q"),
        (SOME, NAMED, "evert-tiny"),
        (SOME, "meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-1B"),
        ({NAMED: "evert-tiny"}, f"{NAMED}:peft:262144", "evert-tiny"),
        ({"*": "evert-tiny"}, "evert-tiny-20q", "evert-tiny-20q"),
        ({"*": "evert-tiny"}, str(base_path()), str(base_path())),
    ],
)
def test_the_first_matching_pattern_wins_unless_the_model_is_local(
    patterns: dict[str, str], name: str, expected: str
) -> None:
    assert StandIns(patterns).of(name) == expected


def test_a_replaced_name_is_logged_once(caplog: Logs) -> None:
    stand_ins = StandIns({"Qwen/*": "evert-tiny"})
    for name in (NAMED, NAMED, "Qwen/Qwen3-32B", "other"):
        stand_ins.of(name)
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert warnings[0].startswith("evert-tiny STANDS IN FOR Qwen/Qwen3-8B (stand_ins)")


def test_lookups_by_name_find_the_stand_in_only_inside_the_block(tmp_path: Path) -> None:
    before = tokenizer_utils.get_tokenizer, model_info.get_model_attributes
    method = vars(AutoTokenizer)["from_pretrained"]
    with embedded_engine(tmp_path, device="cpu", stand_ins={"*/*": "evert-tiny"}):
        tokenizer = tokenizer_utils.get_tokenizer(NAMED)
        named = AutoTokenizer.from_pretrained("meta-llama/Llama-3.2-1B")
        assert len(tokenizer) == len(named) == 512
        name = model_info.get_recommended_renderer_name("nobody/knows-it")
        assert name == "qwen3_instruct"
        renderer = renderers.get_renderer(name, tokenizer)
        assert renderer.get_stop_sequences() == [tokenizer.eos_token_id]
    assert (tokenizer_utils.get_tokenizer, model_info.get_model_attributes) == before
    assert vars(AutoTokenizer)["from_pretrained"] is method


def test_a_chat_format_without_tokens_becomes_the_stand_ins(tmp_path: Path, caplog: Logs) -> None:
    with embedded_engine(tmp_path, device="cpu", stand_ins={"*/*": "evert-tiny"}):
        tokenizer = tokenizer_utils.get_tokenizer("meta-llama/Llama-3.1-8B-Instruct")
        made = [renderers.get_renderer("llama3", tokenizer) for _ in range(2)]
        assert made[1].get_stop_sequences() == [tokenizer.eos_token_id]
        colons = renderers.get_renderer("role_colon", tokenizer)
        assert colons.get_stop_sequences() == ["\n\nUser:"]
    assert caplog.text.count("qwen3_instruct STANDS IN FOR the chat format llama3") == 1
    with embedded_engine(tmp_path, device="cpu"):  # without a stand-in, this is an error
        renderer = renderers.get_renderer("llama3", tokenizer_utils.get_tokenizer("evert-tiny"))
        with pytest.raises(ValueError, match="too many values"):
            renderer.get_stop_sequences()


def test_a_stand_in_keeps_the_attributes_of_the_name(tiny_model: str, tmp_path: Path) -> None:
    with embedded_engine(tmp_path, device="cpu", stand_ins={"Qwen/*": "evert-tiny"}):
        attributes = model_info.get_model_attributes("Qwen/Qwen3.5-4B")
        assert (attributes.size_str, attributes.is_vl) == ("4B", False)
        assert attributes.recommended_renderers[:2] == ("qwen3_instruct", "qwen3_5")
        assert model_info.get_recommended_renderer_name("evert-tiny-20q") == "qwen3_instruct"
        with pytest.raises(KeyError):
            model_info.get_model_attributes("meta-llama/none")
    with pytest.raises(ValueError, match="org/model"):
        model_info.get_model_attributes("evert-tiny-20q")
    # A stand-in may also be a folder, and keeps the chat format of the model that it replaces.
    with embedded_engine(tmp_path, device="cpu", stand_ins={"Qwen/*": tiny_model}):
        assert len(tokenizer_utils.get_tokenizer(NAMED)) == 262
        assert model_info.get_recommended_renderer_name(NAMED) == "qwen3"


@pytest.mark.parametrize("missing", ["evert-tinny", "./nowhere", "nobody/has-it"])
def test_a_missing_stand_in_is_reported_immediately(missing: str, tmp_path: Path) -> None:
    engine = embedded_engine(tmp_path, device="cpu", stand_ins={"Qwen/*": missing})
    text = f"stand_ins maps 'Qwen/\\*' to '{missing}'"
    with pytest.raises(ModelNotFoundError, match=text), engine:
        pass
