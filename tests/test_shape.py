"""The size of things: a reader sees a function on one screen and a file in one sitting.

1. No function has over 50 lines, and 95 of 100 have at most 30.
2. No file has over 400 lines.
3. No class has over 20 methods, but for those that have the surface of somebody else's class.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.test_layout import MODULES, ROOT, module_name

LONGEST_FUNCTION = 50
"""Lines, from the signature to the last statement."""

USUAL_FUNCTION = 30
"""Lines that 95 of 100 functions keep to."""

LONGEST_FILE = 400

MOST_METHODS = 20

OTHERS_SURFACES = {"TrainingClient", "ServiceClient", "RestClient", "SamplingClient"}
"""Classes that stand for one of the Tinker SDK's, method for method."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path: Path) -> Iterator[Function]:
    """Every function and method of a file, inner ones too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, Function):
            yield node


def lines(function: Function) -> int:
    return (function.end_lineno or 0) - function.lineno + 1


def test_no_function_is_longer_than_a_screen() -> None:
    long = [
        f"{module_name(path)}:{function.lineno} {function.name}: {lines(function)} lines"
        for path in MODULES
        for function in functions(path)
        if lines(function) > LONGEST_FUNCTION
    ]

    assert not long


def test_nearly_all_functions_are_short() -> None:
    sizes = sorted(lines(function) for path in MODULES for function in functions(path))

    assert sizes[int(0.95 * len(sizes))] <= USUAL_FUNCTION


def test_no_file_is_longer_than_a_sitting() -> None:
    sizes = {module_name(path): len(path.read_text().splitlines()) for path in MODULES}

    assert not {name: size for name, size in sizes.items() if size > LONGEST_FILE}


def test_no_class_does_everything() -> None:
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and node.name not in OTHERS_SURFACES:
                methods = [child for child in node.body if isinstance(child, Function)]
                assert len(methods) <= MOST_METHODS, f"{node.name}: {len(methods)} methods"


def test_the_files_are_those_of_the_three_folders() -> None:
    assert {"bridge", "envs", "trainers"} <= {path.relative_to(ROOT).parts[0] for path in MODULES}
