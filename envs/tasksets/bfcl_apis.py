"""BFCL's simulated APIs and checker, which run in an isolated process (``bridge/isolation.py``).

The package evaluates calls as Python, which would let a policy run arbitrary code. Here, a call is
a method name with arguments, and the isolated process has limited time and memory.
"""

# pyright: reportMissingImports=false

import ast
import copy
import importlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING, STATELESS_CLASSES
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_checker as checker

Call: TypeAlias = "str | list[Any]"
"""A method name with keyword arguments, or (in the ground truth) code such as ``cd('docs')``."""

_instances: dict[str, dict[str, Any]] = {}


def execute(
    func_call_list: Sequence[Call],
    initial_config: dict[str, Any],
    involved_classes: list[str],
    model_name: str,
    test_entry_id: str = "",
    *,
    long_context: bool = False,
    is_evaL_run: bool = True,
) -> tuple[list[str], dict[str, Any]]:
    """Run calls; return their results and the API instances. Replaces the package's function."""
    if model_name not in _instances:
        apis = {name: _instance(name, initial_config, long_context) for name in involved_classes}
        _instances[model_name] = apis
    instances = _instances[model_name]
    methods = {
        name: method
        for instance in instances.values()
        for name, method in inspect.getmembers(instance, inspect.ismethod)
        if not name.startswith("_")
    }
    return [_answer(methods, call) for call in func_call_list], instances


def _instance(name: str, config: dict[str, Any], long_context: bool) -> Any:
    instance = getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[name]), name)()
    if name not in STATELESS_CLASSES:
        instance._load_scenario(copy.deepcopy(config.get(name, {})), long_context=long_context)
    return instance


def _answer(methods: Mapping[str, Callable[..., Any]], call: Call) -> str:
    name, args, options = _parsed(call) if isinstance(call, str) else (call[0], [], call[1])
    if name not in methods:
        return f"Error during execution: name {name!r} is not defined"
    try:
        result = methods[name](*args, **options)
        return result if isinstance(result, str) else _text(result)
    except Exception as error:
        return f"Error during execution: {error}"


def _text(result: Any) -> str:
    try:
        return json.dumps(result) if isinstance(result, dict) else str(result)
    except (TypeError, ValueError):
        return str(result)


def _parsed(source: str) -> tuple[str, list[Any], dict[str, Any]]:
    match ast.parse(source, mode="eval").body:
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            options = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in keywords}
            return name, [ast.literal_eval(arg) for arg in args], options
    raise ValueError(f"The ground truth contains {source!r}, which is not an API method call.")


class ApiState:
    """A row's APIs and their state."""

    def begin(self, row: dict[str, Any], truth: list[list[str]]) -> None:
        """Start a row."""
        self.row, self.truth = row, truth
        checker.execute_multi_turn_func_call = execute

    def call(self, calls: Sequence[Call]) -> list[str]:
        """Run the calls of one step and return their results."""
        arguments = self.row["initial_config"], self.row["involved_classes"], "playing"
        return execute(calls, *arguments, long_context="long_context" in self.row["id"])[0]

    def check(self, turns: list[list[list[Call]]]) -> dict[str, Any]:
        """Run the checker on the calls of each turn and step, and return its verdict."""
        verdict = checker.multi_turn_checker(turns, self.truth, self.row, "", "checking")
        return {name: verdict.get(name) for name in ("valid", "error_type")}
