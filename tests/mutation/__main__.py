"""Mutates decisions, at most 200 of them, and runs the tests nearest to each: `make mutants`.

Comparisons, conditions, sums, smallest and largest: one mutant for each, drawn by `--seed`. They are made in
a copy of the tree. What survives and is not known to be equivalent is printed, and fails the run. A run that
was broken off goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import use_mutation
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator, operator_names
from cosmic_ray.testing import run_tests
from cosmic_ray.work_item import TestOutcome

from tests.mutation.swap_min_max import SwapMinMax
from tests.mutation.targets import EQUIVALENT, MAX_MUTANTS, TARGETS

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutation"
OPERATORS = re.compile(
    r"core/(AddNot|ReplaceAndWithOr|ReplaceOrWithAnd|ReplaceTrueWithFalse|ReplaceFalseWithTrue"
    r"|ReplaceBreakWithContinue|ReplaceComparisonOperator_\w+|ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Div))"
)
TIMEOUT_FACTOR, LEAST_TIMEOUT_S = 5.0, 30.0


@dataclass(frozen=True, slots=True)
class Mutant:
    """``occurrence``: the how many-th place of the module that ``operator`` can change."""

    module: str
    operator: str
    occurrence: int
    line: int


@dataclass(frozen=True, slots=True)
class Result:
    mutant: Mutant
    survived: bool
    mutated: str


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the draw (default 1)")
    parser.add_argument("--mutants", type=int, default=MAX_MUTANTS, help=f"at most (default {MAX_MUTANTS})")
    parser.add_argument("--module", action="append", help="only this one; may be repeated")
    parser.add_argument("--again", action="store_true", help="forget earlier results")
    args = parser.parse_args(argv)
    targets = {m: t for m, t in TARGETS.items() if not args.module or m in args.module}
    kept = WORK / f"results-{args.seed}.jsonl"
    if args.again:
        kept.unlink(missing_ok=True)
    tree = copied_tree(WORK / "tree")
    os.chdir(tree)
    mutants = drawn(targets, args.mutants, args.seed)
    results = {result.mutant: result for result in read(kept)}
    limits = {module: timeout_s(tests) for module, tests in targets.items()}
    for i, mutant in enumerate(mutants):
        if mutant not in results:
            result = tried(mutant, limits[mutant.module])
            results[mutant] = result
            with kept.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
        said = "survived" if results[mutant].survived else "killed"
        print(f"{i + 1}/{len(mutants)} {mutant.module}:{mutant.line} {mutant.operator}: {said}", flush=True)
    return report([results[mutant] for mutant in mutants])


def copied_tree(tree: Path) -> Path:
    """What git knows of, and the compiled kernels."""
    shutil.rmtree(tree, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    kernels = [str(path.relative_to(ROOT)) for path in (ROOT / "shared").rglob("*.so")]
    for name in [*listed.stdout.rstrip("\0").split("\0"), *kernels]:
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    return tree


def drawn(targets: Mapping[str, Sequence[str]], limit: int, seed: int) -> list[Mutant]:
    """One mutant of every place; of these as many of each module, as far as it has them."""
    places: dict[str, list[Mutant]] = {}
    for module in targets:
        draw = random.Random(f"{seed} {module}")  # another module's change does not change these
        places[module] = list(one_per_place(module, draw))
        draw.shuffle(places[module])
    chosen: list[Mutant] = []
    while len(chosen) < limit and any(places.values()):
        chosen += [of_module.pop() for of_module in places.values() if of_module]
    return sorted(chosen[:limit], key=lambda mutant: (mutant.module, mutant.line, mutant.operator))


def one_per_place(module: str, draw: random.Random) -> Iterator[Mutant]:
    at: dict[object, list[Mutant]] = {}
    nodes = list(ast_nodes(get_ast_from_path(Path(module))))
    for name in ("SwapMinMax", *filter(OPERATORS.fullmatch, operator_names())):
        operator = operator_called(name)
        places = ((node, position) for node in nodes for position in operator.mutation_positions(node))
        for occurrence, (node, position) in enumerate(places):
            if not _decides_nothing(node):
                at.setdefault(position, []).append(Mutant(module, name, occurrence, position[0][0]))
    for same in at.values():
        yield draw.choice(same)


def _decides_nothing(node: Any) -> bool:
    return parso.tree.search_ancestor(node, "decorator", "assert_stmt") is not None


def operator_called(name: str) -> Operator:
    return SwapMinMax() if name == "SwapMinMax" else get_operator(name)()


def command(tests: Sequence[str]) -> str:
    files = [f"tests/unit/{name}" for name in tests]
    python = str(ROOT / ".venv" / "bin" / "python")
    return shlex.join([python, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *files])


def timeout_s(tests: Sequence[str]) -> float:
    """A mutant that runs much longer than the original is killed by it.

    Raises:
        SystemExit: the original fails.
    """
    began = time.monotonic()
    outcome, output = run_tests(command(tests), 600)
    if outcome is not TestOutcome.SURVIVED:
        sys.exit(f"{', '.join(tests)} fail without a mutant:\n{output}")
    return max(LEAST_TIMEOUT_S, TIMEOUT_FACTOR * (time.monotonic() - began))


def tried(mutant: Mutant, limit_s: float) -> Result:
    operator = operator_called(mutant.operator)
    with use_mutation(Path(mutant.module), operator, mutant.occurrence) as (original, mutated):
        assert mutated is not None
        outcome, _ = run_tests(command(TARGETS[mutant.module]), limit_s)
    changed = next(b for a, b in zip(original.splitlines(), mutated.splitlines(), strict=False) if a != b)
    return Result(mutant, outcome is TestOutcome.SURVIVED, changed.strip())


def read(kept: Path) -> Iterator[Result]:
    if kept.exists():
        for line in kept.read_text().splitlines():
            told = json.loads(line)
            yield Result(Mutant(**told["mutant"]), told["survived"], told["mutated"])


def report(results: Sequence[Result]) -> int:
    known = {(one.module, one.line): one.reason for one in EQUIVALENT}
    count = Counter[str]()
    for result in results:
        key = (result.mutant.module, result.mutated)
        verdict = "killed" if not result.survived else "equivalent" if key in known else "survived"
        count[verdict] += 1
        if verdict != "killed":
            print(f"{verdict}: {result.mutant.module}:{result.mutant.line}: {result.mutated}")
            if key in known:
                print(f"    {known[key]}")
    print(f"{len(results)} mutants: " + ", ".join(f"{n} {verdict}" for verdict, n in count.items()))
    return 1 if count["survived"] else 0


if __name__ == "__main__":
    WORK.mkdir(parents=True, exist_ok=True)
    sys.exit(main(sys.argv[1:]))
