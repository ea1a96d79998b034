"""Renderers of all families, with the bundled tokenizer plus the control tokens they expect."""

import copy
import inspect
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import tinker_cookbook.renderers as cookbook

from evert.bridge.tokens.bases import base_tokenizer

MakeRenderer = Callable[[str], cookbook.Renderer]
CONTROL_TOKEN = re.compile(r"<[|｜][^\s<>\"'{}]{1,40}[|｜]>|\[gMASK\]|<sop>")
FAMILIES = [
    *("qwen3_instruct", "qwen3", "qwen3_disable_thinking", "qwen3_5", "qwen3_5_preserve_thinking"),
    *("qwen3_8_disable_thinking", "llama3", "role_colon", "deepseekv3", "deepseekv3_thinking"),
    *("deepseekv4_1_disable_thinking", "glm5_3_low_reasoning", "kimi_k2"),
    *("kimi_k26_preserve_thinking", "nemotron3", "nemotron3_preserve_thinking"),
    "gpt_oss_no_sysprompt",
]


@cache
def tokenizer_for_all_families() -> Any:
    """Return the bundled tokenizer with all control tokens found in the Cookbook's source code."""
    folder = Path(inspect.getfile(cookbook)).parent
    names = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}
    for source in folder.glob("*.py"):
        names.update(CONTROL_TOKEN.findall(source.read_text()))
    tokenizer = copy.deepcopy(base_tokenizer())
    tokenizer.add_special_tokens({"additional_special_tokens": sorted(names)})
    return tokenizer


def renderer_named(name: str) -> cookbook.Renderer:
    """Return a renderer by its Cookbook name."""
    return cookbook.get_renderer(name, tokenizer_for_all_families(), model_name="test")
