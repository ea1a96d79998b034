"""Which mistakes do the tests notice? Cosmic Ray makes mutants of the most critical sources.

    pip install --constraint constraints.txt --editable ".[test,mutants]"
    python benchmarks/mutants.py [--seed 0] [--count 400] [--out mutants.json] [--processes 2]

A mutant is a source file with one mistake. The seed draws mutants from the code of tokens,
conversations, rollouts, records, checkpoints and losses. They depend on these sources, not on the
tests. A place is mutated at most once, and not at all if no test should notice (``Meaning``).

All tests run once without a mutant, and coverage finds those that reach a mutant's statement. These
run on the mutant until one fails: the quickest of each file first, within ``BUDGET``. Each mutant
runs in a process forked from one that has collected all tests. If its statement runs at import, the
process is forked from one that has not imported evert. At the end the tests that failed run without
a mutant. If a test fails there, too, its mutants run again without it.

killed: a test failed. timed out: a test, or all, took too long, or the process died. survived: no
test failed. After Ctrl-C the same command continues. Use a new ``--out`` when the tests change.
"""

import argparse
import ast
import gc
import importlib
import inspect
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import coverage
import hypothesis
import parso
import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator, operator_names
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
SHARES = {
    "bridge/tokens/*.py": 90, "bridge/conversations/*.py": 85, "bridge/env/*.py": 95,
    "bridge/records/*.py": 60, "trainers/engine/store/*.py": 40,
    "trainers/engine/training/losses.py": 30,
}  # fmt: skip
"""Source files -> how many of 400 mutants are drawn from them."""
TESTS = (
    "tests/bridge", "tests/trainers/engine/clients", "tests/trainers/engine/sampling",
    "tests/trainers/engine/store", "tests/trainers/engine/training", "tests/faults/test_records.py",
    "tests/trainers/test_torn_files.py", "tests/trainers/test_records_commands.py",
)  # fmt: skip
LEFT_OUT = (
    "*/injection/*", "*/test_process*", "*/test_supervisor*", "*/test_server_li*",
    "*/test_servers*", "*/test_imports*", "*/test_surface*",
)  # fmt: skip
"""Tests that take minutes, tests of processes, and tests of the source text."""
OPERATORS = re.compile(
    r"AddNot|True|False|AndWith|OrWith|Break|Exception|Number|RemoveDeco|Zero|Delete_(Not|USub)"
    r"|Operator_(Add_Sub|Sub_Add|Mul_Div|Div_Mul|FloorDiv_Mul|Mod_Mul|Pow_Mul|BitOr_BitAnd"
    r"|BitAnd_BitOr|Eq_NotEq|NotEq_Eq|Is_IsNot|IsNot_Is|Lt_LtE|LtE_Lt|Lt_Gt|Gt_GtE|GtE_Gt|Gt_Lt)$"
)
"""The operators in use. Not ``+`` to ``<<``: every test notices; or ``==`` to ``is``: none does."""
HEAVY = (
    "torch", "transformers.models.qwen3.modeling_qwen3", "peft", "scipy.stats", "gymnasium",
    "tinker_cookbook.rl.train", "tinker_cookbook.renderers", "tinker_cookbook.recipes.math_rl",
    "openai", "anthropic", "google.genai", "lm15", "matplotlib.pyplot", "wandb", "textarena",
    "nltk", "aiohttp.web", "jsonschema_rs", "PIL.Image", "pytest_asyncio.plugin",
    "pytest_timeout", "xdist.plugin", "setuptools",
)  # fmt: skip
"""Modules that are imported once, before processes are forked."""
PATIENCE, MEMORY = 40, 8 << 30
"""The most seconds of one test, and bytes of one process."""
LONGEST, BUDGET = 4.0, 12.0
"""The most processor seconds, without a mutant, of one test and of all tests of a mutant."""

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
Mutant = dict[str, Any]
console = Console(file=os.fdopen(os.dup(2), "w", buffering=1), soft_wrap=True, highlight=False)


# -- mutants -------------------------------------------------------------------------------------


class RemoveStatement(Operator):  # type: ignore[misc]
    """Replaces a call, or an assignment to an attribute or item, by ``pass``."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        """Yield where such a statement begins and ends."""
        first = node.children[0] if node.type == "simple_stmt" else node
        target = first.children[0] if first.type == "expr_stmt" else first
        if first is not node and target.type == "atom_expr":
            yield first.start_pos, first.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Replace the statement by ``pass``."""
        old = node.children[0]
        prefix = old.get_first_leaf().prefix
        node.children[0] = parso.python.tree.Keyword("pass", old.start_pos, prefix)
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        """Return no examples."""
        return ()


class Meaning(ast.NodeTransformer):
    """Removes what tests need not check: annotations, texts, messages, logging, ``__all__``."""

    def visit(self, node: ast.AST) -> Any:
        """Return the node without such code."""
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                node.returns = None
                kept = [one for one in node.decorator_list if ast.unparse(one) != "override"]
                node.decorator_list = kept
            case ast.arg() | ast.AnnAssign():
                node.annotation = ast.Constant(None)
            case ast.Raise(exc=ast.Call(func=error)):
                node.exc = error
            case ast.JoinedStr():
                return ast.Constant("")
            case (
                ast.Expr(value=ast.Constant())
                | ast.Expr(value=ast.Call(func=ast.Attribute(ast.Name("logger" | "warnings"))))
                | ast.If(test=ast.Name("TYPE_CHECKING"))
                | ast.Assign(targets=[ast.Name("__all__")])
            ):
                return ast.Pass()
            case ast.BinOp(op=ast.BitOr() | ast.BitAnd()):
                if re.search(r"\b([A-Z]|None)", ast.unparse(node)):  # A union of types
                    return ast.Constant(None)
        return self.generic_visit(node)


def meaning(code: str) -> str | None:
    """Return a dump of the code without what ``Meaning`` removes; None if it does not compile."""
    with suppress(SyntaxError):
        compile(code, "mutant", "exec")
        return ast.dump(Meaning().visit(ast.parse(code)))
    return None


def operator(name: str) -> Any:
    """Return the mutation operator of a name."""
    return RemoveStatement() if name == "RemoveStatement" else get_operator(f"core/{name}")()


def places(path: Path) -> dict[Any, list[tuple[str, int]]]:
    """Return each place in a file with the operators that mutate it, and their occurrence."""
    nodes = list(ast_nodes(get_ast(path.read_text())))
    names = [name.split("/")[1] for name in operator_names() if OPERATORS.search(name)]
    found = defaultdict(list)
    for name in [*names, "RemoveStatement"]:
        spots = [spot for node in nodes for spot in operator(name).mutation_positions(node)]
        for occurrence, (start, _) in enumerate(spots):
            found[start].append((name, occurrence))
    return dict(sorted(found.items()))


def draw(pattern: str, count: int, seed: int) -> Iterator[Mutant]:
    """Yield ``count`` mutants of the files of a pattern."""
    draws = random.Random(f"{seed} {pattern}")
    files = [path for path in sorted(ROOT.glob(pattern)) if path.name != "__init__.py"]
    spots = [(path, spot, made) for path in files for spot, made in places(path).items()]
    draws.shuffle(spots)
    for path, (line, _), made in spots:
        if not count:
            return
        name, occurrence = draws.choice(made)
        mutant = {"file": str(path.relative_to(ROOT)), "line": line, "operator": name,
                  "occurrence": occurrence}  # fmt: skip
        source, code = code_of(mutant)
        if meaning(code) not in (None, meaning(source)):
            count -= 1
            lines = zip(source.splitlines(), code.splitlines(), strict=False)
            old, new = next((old.strip(), new.strip()) for old, new in lines if old != new)
            yield {"module": pattern.rpartition("/")[0], **mutant, "what": f"{old} -> {new}"}


def code_of(mutant: Mutant) -> tuple[str, str]:
    """Return a file's source without and with the mutation."""
    source = (ROOT / mutant["file"]).read_text()
    return source, mutate_code(source, operator(mutant["operator"]), mutant["occurrence"])


# -- tests ---------------------------------------------------------------------------------------


class Tests:
    """A pytest plugin that calls ``work`` after collection, instead of running the tests."""

    def __init__(self, work: Callable[["Tests"], object]) -> None:
        self.work = work
        self.tracer: coverage.Coverage | None = None
        self.items: dict[str, pytest.Item] = {}
        self.failed: dict[str, bool] = {}  # Test -> whether it took too long
        self.seconds: dict[str, float] = {}  # Test -> processor seconds

    def collect(self, paths: Iterable[str]) -> int:
        """Collect tests and do the work; return pytest's exit status."""
        hypothesis.settings.register_profile(
            "mutants", database=None, derandomize=True, deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
            phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        )  # fmt: skip
        hypothesis.settings.load_profile("mutants")
        options = ["-q", "--capture=sys", "-p", "no:cacheprovider", "-o", f"timeout={PATIENCE}",
                   "-W", "ignore::pytest.PytestAssertRewriteWarning"]  # fmt: skip
        options += [f"--ignore-glob={glob}" for glob in LEFT_OUT]
        there = [path for path in dict.fromkeys(paths) if Path(path).exists()]
        return int(pytest.main([*options, *there], plugins=[self]))

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Call ``work``."""
        self.items = {item.nodeid: item for item in session.items}
        self.work(self)
        return True

    def play(self, chosen: Iterable[str], to_the_end: bool = False) -> None:
        """Run tests in this process until one fails, or all of them."""
        items = [self.items[name] for name in chosen if name in self.items]
        for item, following in zip(items, [*items, None][1:], strict=True):
            if self.tracer is not None:
                self.tracer.switch_context(item.nodeid)
            start = time.process_time()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            self.seconds[item.nodeid] = time.process_time() - start
            if to_the_end and len(self.seconds) % 250 == 0:
                console.print(f"{len(self.seconds)} of {len(items)} tests")
            if self.failed and not to_the_end:
                return

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a failure."""
        if report.failed:
            self.failed[report.nodeid] = "Timeout (>" in report.longreprtext

    def outcome(self, status: int = 0) -> Mutant:
        """Return a mutant's outcome, and the first test that failed."""
        late = any(self.failed.values())
        said = "timed out" if late else "killed" if self.failed or status else "survived"
        return {"outcome": said, "by": next(iter(self.failed), "")}


def statement(tree: ast.Module, line: int) -> tuple[set[int], bool]:
    """Return the lines of the statement at a line, and whether it is inside a function."""

    def first(node: Any) -> int:
        return int(min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))]))

    around: list[Any] = [
        node for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and first(node) <= line <= (node.end_lineno or 0)
    ]  # fmt: skip
    own = max(around, key=first)
    inside = [node.body[0].lineno <= line for node in around if isinstance(node, FUNCTIONS)]
    body = own.body[0].lineno if hasattr(own, "body") else own.end_lineno + 1
    return set(range(first(own), body)) if line < body else {line}, any(inside)


def trace(
    tests: Tests, tracer: coverage.Coverage, names: list[str], mutants: list[Mutant]
) -> dict[str, Any]:
    """Run tests without a mutant; return which of them reach each mutant's statement."""
    tests.tracer = tracer
    tracer.start()
    tests.play(names, to_the_end=True)
    tracer.stop()
    data, reach = tracer.get_data(), []
    for mutant in mutants:
        path = ROOT / mutant["file"]
        by_line = data.contexts_by_lineno(str(path))
        lines, in_function = statement(ast.parse(path.read_text()), mutant["line"])
        found = {name for line in lines for name in by_line.get(line, ())}
        cold = not in_function or "" in found  # Runs at import: every test that uses the file
        found = {name for names in by_line.values() for name in names} if cold else found
        reach.append({"cold": cold, "tests": sorted(found - {"", *tests.failed})})
    return {"failed": list(tests.failed), "seconds": tests.seconds, "reach": reach}


def trace_all(
    tests: Tests, tracer: coverage.Coverage, mutants: list[Mutant], processes: int
) -> dict[str, Any]:
    """Trace all tests, split over processes by file, and order the tests of each mutant."""
    files = list(dict.fromkeys(name.split("::")[0] for name in tests.items))
    shares = [set(files[number::processes]) for number in range(processes)]
    parts = [[name for name in tests.items if name.split("::")[0] in share] for share in shares]
    with ThreadPoolExecutor(processes) as pool:
        run = partial(fork, math.inf, trace, tests, tracer)
        traced = list(pool.map(lambda part: run(part, mutants), parts))
    seconds = {name: spent for part in traced for name, spent in part["seconds"].items()}
    reach = []
    for of_it in zip(*(part["reach"] for part in traced), strict=True):
        found = {name for one in of_it for name in one["tests"]}
        cold = any(one["cold"] for one in of_it)
        reach.append({"cold": cold, "of": len(found), "tests": in_turn(found, seconds)})
    failed = [name for part in traced for name in part["failed"]]
    return {"failed": failed, "seconds": seconds, "reach": reach}


def in_turn(names: set[str], seconds: dict[str, float]) -> list[str]:
    """Order tests within ``BUDGET``: the five quickest of each file, then the next five, ..."""
    files = defaultdict(list)
    for name in sorted(names, key=lambda name: (seconds[name], name)):
        files[name.split("::")[0]].append(name)
    most = sorted(files.values(), key=len, reverse=True)
    turns = range(0, max(map(len, most), default=0), 5)
    found, left = [], BUDGET
    for name in (name for turn in turns for tests in most for name in tests[turn : turn + 5]):
        if seconds[name] <= min(LONGEST, left):
            left -= seconds[name]
            found.append(name)
    return found


def functions(code: CodeType) -> Iterator[CodeType]:
    """Yield the functions of a module and its classes."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from [inner] if inner.co_flags & inspect.CO_OPTIMIZED else functions(inner)


def attempt_warm(tests: Tests, mutant: Mutant, chosen: list[str]) -> Mutant:
    """Run tests on a mutant of a function that is already imported, by replacing its code."""
    old, new = (functions(compile(code, mutant["file"], "exec")) for code in code_of(mutant))
    changed = {
        (a.co_qualname, a.co_firstlineno): b for a, b in zip(old, new, strict=True) if a != b
    }
    path, found = ROOT / mutant["file"], False
    for function in [one for one in gc.get_objects() if type(one) is FunctionType]:
        code = function.__code__
        other = changed.get((code.co_qualname, code.co_firstlineno))
        if other and Path(code.co_filename).resolve() == path:
            function.__code__, found = other, True
    if not found:
        return {"outcome": "cold"}
    tests.play(chosen)
    return tests.outcome()


def attempt_cold(mutant: Mutant, chosen: list[str]) -> Mutant:
    """Run tests on a mutant that is not yet imported."""
    name = "evert." + mutant["file"].removesuffix(".py").replace("/", ".")
    code, original = code_of(mutant)[1], SourceFileLoader.get_code

    def get_code(loader: Any, fullname: str) -> Any:
        if fullname == name:
            return compile(code, loader.path, "exec", dont_inherit=True)
        return original(loader, fullname)

    setattr(SourceFileLoader, "get_code", get_code)  # noqa: B010
    tests = Tests(lambda tests: tests.play(chosen))
    return tests.outcome(tests.collect(name.split("::")[0] for name in chosen))


def fail_as_it_is(names: list[str]) -> list[str]:
    """Return those of the tests that fail without a mutant."""
    tests = Tests(lambda tests: tests.play(names, to_the_end=True))
    tests.collect(name.split("::")[0] for name in names)
    return list(tests.failed)


# -- processes -----------------------------------------------------------------------------------


def fork(seconds: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a forked process; return None if it took too long or died."""
    folder, latest = Path(tempfile.mkdtemp()), time.monotonic() + seconds
    child, result = os.fork(), folder / "result"
    if not child:
        try:
            tempfile.tempdir = os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            null = os.open(os.devnull, os.O_RDWR)
            for number in range(3):
                os.dup2(null, number)
            result.write_text(json.dumps(function(*arguments)))
        except Exception:
            console.print_exception()
        finally:
            os._exit(0)
    try:
        while not (over := os.waitpid(child, os.WNOHANG)[0]) and time.monotonic() < latest:
            time.sleep(0.02)
        if not over:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        return json.loads(result.read_text()) if result.exists() else None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write(path: Path, what: Any) -> None:
    """Write JSON to a file, atomically."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(what, indent=1))
    draft.replace(path)


def run(options: argparse.Namespace, tests: Tests | None = None) -> None:
    """Run the mutants without an outcome: those of functions if ``tests`` is given, else others."""
    state, reach = json.loads(options.out.read_text()), json.loads(options.reach.read_text())
    pool, runs = ThreadPoolExecutor(options.processes), {}
    try:
        for mutant, reached in zip(state["mutants"], reach["reach"], strict=True):
            cold = reached["cold"] or mutant.get("outcome") == "cold"
            if mutant.get("outcome", "cold") == "cold" and cold == (tests is None):
                chosen = [name for name in reached["tests"] if name not in state["unsteady"]]
                mutant |= {"tests": len(chosen), "of": reached["of"]}
                seconds = 120 + 10 * sum(reach["seconds"][name] for name in chosen)
                how = (attempt_cold,) if tests is None else (attempt_warm, tests)
                runs[pool.submit(fork, seconds, *how, mutant, chosen)] = mutant
        for future in as_completed(runs):
            runs[future].update(future.result() or {"outcome": "timed out", "by": ""})
            left = sum("outcome" not in mutant for mutant in state["mutants"])
            console.print(f"{left} left; {said(runs[future])}", markup=False)
            write(options.out, state)
    finally:
        pool.shutdown(cancel_futures=True)


def serve(options: argparse.Namespace) -> None:
    """Collect all tests once; trace them unless that is done, and run mutants of functions."""

    def work(tests: Tests) -> None:
        tracer.stop()
        if not options.reach.exists():
            console.print(f"{len(tests.items)} tests run without a mutant")
            mutants = json.loads(options.out.read_text())["mutants"]
            reach = trace_all(tests, tracer, mutants, options.processes)
            console.print("fail without a mutant:", *reach["failed"], markup=False)
            write(options.reach, reach)
        run(options, tests)

    files = [str(ROOT / pattern) for pattern in SHARES]
    tracer = coverage.Coverage(data_file=None, include=files, config_file=False)
    tracer.start()
    Tests(work).collect(TESTS)


# -- the command ---------------------------------------------------------------------------------


def main() -> None:
    """Draw the mutants, run them, and print the outcomes."""
    options = parse()
    for name in HEAVY:
        with suppress(ImportError):
            importlib.import_module(name)
    if not options.out.exists():
        shares = {pattern: round(share * options.count / 400) for pattern, share in SHARES.items()}
        drawn = [one for share in shares.items() for one in draw(*share, options.seed)]
        random.Random(options.seed).shuffle(drawn)  # So that any part has all modules
        write(options.out, {"seed": options.seed, "unsteady": [], "mutants": drawn})
    while True:
        fork(math.inf, serve, options)
        run(options)
        state = json.loads(options.out.read_text())
        killers = sorted({one["by"] for one in state["mutants"]} - {""})
        unsteady = fork(math.inf, fail_as_it_is, killers)
        if not unsteady:
            break
        state["unsteady"] += unsteady
        for mutant in state["mutants"]:
            if mutant["by"] in unsteady:
                del mutant["outcome"], mutant["by"]
        write(options.out, state)
    show(state["mutants"])


def said(mutant: Mutant) -> str:
    """Return a mutant and its outcome as a line."""
    where = f"{mutant['outcome']} {mutant['file']}:{mutant['line']} {mutant['operator']}"
    return f"{where} ({mutant['tests']} of {mutant['of']} tests): {mutant['what']}"


def show(mutants: list[Mutant]) -> None:
    """Print the counts by module, and the survivors."""
    outcomes = ("killed", "timed out", "survived")
    table = Table("module", "mutants", *outcomes)
    for module in [*dict.fromkeys(mutant["module"] for mutant in mutants), ""]:
        of_it = [mutant["outcome"] for mutant in mutants if module in ("", mutant["module"])]
        counts = [str(of_it.count(outcome)) for outcome in outcomes]
        table.add_row(module or "all", str(len(of_it)), *counts)
    Console().print(table)
    for mutant in mutants:
        if mutant["outcome"] == "survived":
            print(said(mutant))


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the mutants (default: 0)")
    parser.add_argument("--count", type=int, default=400, help="number of mutants (default: 400)")
    parser.add_argument("--out", type=Path, default=Path("mutants.json"), help="the outcomes")
    parser.add_argument("--processes", type=int, default=2, help="processes at a time (default: 2)")
    options = parser.parse_args()
    options.out = options.out.resolve()
    options.reach = options.out.with_suffix(".reach.json")  # Which tests reach which mutant
    return options


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.path[0] = str(ROOT)
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
