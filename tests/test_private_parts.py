"""Private parts of other packages that evert uses because there is no public alternative.

A comment explains each use. If another package removes a part that we use, a test here fails.
"""

import ast
import asyncio
import concurrent.futures.thread
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
import chz
import gymnasium
import pytest
import tinker
import torch
from aiohttp import web
from tests.test_layout import trees
from tinker_cookbook.renderers.base import Renderer
from tinker_cookbook.rl import rollouts
from transformers import PreTrainedTokenizerFast


async def loop_executor() -> object:
    return asyncio.get_running_loop()._default_executor  # type: ignore[attr-defined]


async def connector_factory() -> object:
    async with aiohttp.TCPConnector() as connector:
        return connector._factory


def vector_env() -> Any:
    return gymnasium.make_vec("CartPole-v1", 1, "sync")


SERVICE_LOAD = "_create_training_client_via_load_weights_submit"


def chz_field() -> Any:
    """Return a chz field with a default."""

    @chz.chz
    class Settings:
        steps: int = 1

    return chz.chz_fields(Settings)["steps"]


PRIVATE_PARTS: dict[str, Callable[[], object]] = {
    "_autoreset_envs": lambda: vector_env()._autoreset_envs,
    "_base_executable": lambda: sys._base_executable,  # type: ignore[attr-defined]
    "_bos_tokens": lambda: Renderer._bos_tokens,
    "_data": lambda: os.environ._data,  # type: ignore[attr-defined]
    "_default": lambda: chz_field()._default,
    "_default_executor": lambda: asyncio.run(loop_executor()),
    "_doc": lambda: chz_field()._doc,
    "_encode_plus": lambda: PreTrainedTokenizerFast._encode_plus,
    "_factory": lambda: asyncio.run(connector_factory()),
    "_linear_pointwise": lambda: torch.ops.mkldnn._linear_pointwise,
    "_load_state_impl": lambda: tinker.TrainingClient._load_state_impl,
    "_manager": lambda: vars(web.RequestHandler)["_manager"],
    "_max_workers": lambda: ThreadPoolExecutor()._max_workers,
    "_run_rollout_sync": lambda: rollouts._run_rollout_sync,
    "_send_asample_request": lambda: tinker.SamplingClient._send_asample_request,
    "_target": lambda: threading.Thread()._target,  # type: ignore[attr-defined]
    "_unregister_task": lambda: asyncio._unregister_task,
    "_worker": lambda: concurrent.futures.thread._worker,
    SERVICE_LOAD: lambda: getattr(tinker.ServiceClient, SERVICE_LOAD),
}


OTHER_ENVIRONMENTS = {
    "_gateway", "_load_scenario", "_merge_env", "_mount_targets", "_obj_tree_tempdir", "_ws",
}  # fmt: skip
"""Private parts of packages that are not in .venv. Tests in their environments use them."""


@pytest.mark.parametrize("name", PRIVATE_PARTS)
def test_a_private_part_of_another_package_still_exists(name: str) -> None:
    PRIVATE_PARTS[name]()


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def used(tree: ast.AST) -> Iterator[str]:
    """Yield private names that a module accesses on other objects."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if private(name):
                yield name
            case ast.ImportFrom(module=str(module), names=names) if "evert" not in module:
                yield from (alias.name for alias in names if private(alias.name))
            case ast.Call(func=ast.Name("getattr"), args=[_, ast.Constant(str(name)), *_]):
                yield from [name] if private(name) else []


def defined(tree: ast.AST) -> Iterator[str]:
    """Yield the names a module defines: functions, classes, fields, attributes and slots."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Constant(str(name)) if name.isidentifier():
                yield name


def test_no_other_private_parts_are_used() -> None:
    ours = {name for tree in trees().values() for name in defined(tree)} - {*PRIVATE_PARTS}
    theirs = {name for tree in trees().values() for name in used(tree)} - ours
    assert theirs - {*PRIVATE_PARTS, "_exit"} == OTHER_ENVIRONMENTS  # os._exit is documented
