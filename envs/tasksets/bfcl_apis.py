"""BFCL's simulated APIs and its checker, in a separate process for each episode.

It reads lines of JSON. The first is a row and its ground truth. The next ones are calls, as
[[name, arguments], ...], and it writes their results. The last one is {"turns": calls by turn and
step}, and it writes the checker's verdict. The package evaluates calls as Python, so a policy could
run any code. Here a call is a method's name and its arguments, with limits on time and memory.
"""

# pyright: reportMissingImports=false

import ast
import copy
import importlib
import inspect
import json
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING, STATELESS_CLASSES
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_checker as checker

SECONDS, BYTES = 10, 2**31
"""Most processor time and memory of an episode."""

Call: TypeAlias = "str | list[Any]"
"""A method's name and its arguments by name; or as the ground truth writes it: ``cd('docs')``."""

_made: dict[str, dict[str, Any]] = {}


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
    """Run calls; return their results and the instances. Replaces the package's function."""
    if model_name not in _made:
        made = {name: _instance(name, initial_config, long_context) for name in involved_classes}
        _made[model_name] = made
    instances = _made[model_name]
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
    name, args, given = _parsed(call) if isinstance(call, str) else (call[0], [], call[1])
    if name not in methods:
        return f"Error during execution: name {name!r} is not defined"
    try:
        result = methods[name](*args, **given)
        return result if isinstance(result, str) else _text(result)
    except Exception as error:
        return f"Error during execution: {error}"


def _text(result: Any) -> str:
    try:
        return json.dumps(result) if isinstance(result, dict) else str(result)
    except (TypeError, ValueError):
        return str(result)


def _parsed(written: str) -> tuple[str, list[Any], dict[str, Any]]:
    match ast.parse(written, mode="eval").body:
        case ast.Call(func=ast.Name(id=name), args=args, keywords=given):
            named = {str(one.arg): ast.literal_eval(one.value) for one in given}
            return name, [ast.literal_eval(one) for one in args], named
    raise ValueError(f"The ground truth has {written!r}, which does not call an API's method.")


def main() -> None:
    """Answer lines until the input ends."""
    out, sys.stdout = sys.stdout, sys.stderr  # an API may print
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    row, truth = json.loads(sys.stdin.readline())
    checker.execute_multi_turn_func_call = execute
    is_long = "long_context" in row["id"]
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, list):
            made = row["initial_config"], row["involved_classes"], "playing"
            answer: Any = execute(asked, *made, long_context=is_long)[0]
        else:
            verdict = checker.multi_turn_checker(asked["turns"], truth, row, "", "checking")
            answer = {name: verdict.get(name) for name in ("valid", "error_type")}
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
