"""Which checks and sanitizers catch which wrong kernel: asked, as a table, and read off it again.

``scripts/broken_kernels.py`` writes the table to docs/broken.md; ``test_table.py`` compares.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from catches import CONTROLS, ONLY_ON_HARDWARE
from pallas_test_support.forked_python import run_python

from pytest_pallas.checks import declared_sanitizers
from pytest_pallas.run.collection import suite
from pytest_pallas.spec import KernelSpec

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs/broken.md"

PACKAGES = ("wrong_kernels", "twins")
BACKENDS = ("tpu-sim", "gpu-sim")
SEEDS = (0, 1, 2)

#: What the name of a right twin ends with.
RIGHT = "_right"

#: What every kernel is asked, besides the checks that its spec names. Vmap, jit, blocks, cross and
#: their like ask about the answer once more, and say what ``forward`` said.
ASKED = (
    *("forward", "padding", "determinism", "immutability", "grid"),
    *(each.name for each in declared_sanitizers() if not each.opt_in),
)

#: These are listed also where they say the same as ``forward``, which watches for them, too.
OWN_WORDS = ("races", "dma", "deadlock", "schedule")

#: What one H200 answered (``scripts/chip_answers.py``; 27 November 2026, JAX 0.11.2, ``forward``,
#: 4 examples).
ON_H200: Mapping[str, str] = json.loads((HERE / "h200.json").read_text())
H200 = "an H200's answer"

#: The family of kernels whose spec does not say it.
FAMILY = {
    **dict.fromkeys(
        ("not_cleared", "bfloat16_sum", "bfloat16_sum_of_normals", "left_over_activation"),
        "matmul",
    ),
    **dict.fromkeys(
        ("sees_one_key_too_many", "wrong_scale", "last_key_forgotten", "too_loose", "transposed"),
        "attention",
    ),
    **dict.fromkeys(
        ("padding_added", "wrong_base", "greatest_of_all", "positives_of_all", "times_zero")
        + ("mean_of_padded", "any_order"),
        "norms and reductions",
    ),
    **dict.fromkeys(
        ("read_before_wait", "shared_semaphore", "shared_semaphore_last_first", "never_signalled"),
        "DMA pipelines",
    ),
    **dict.fromkeys(("mutates_input",), "aliasing"),
    **dict.fromkeys(("int8_overflow",), "quantised"),
}
OTHERS = "elementwise"

#: What is wrong where it is not the kernel itself that says it.
WORDS = {
    "too_loose": "A tolerance of 0.5 on small values: a causal mask that is off by one passes.",
    "wrong_twin": "The implementation that the kernel is compared with drops the last rows.",
    "bfloat16_sum_of_normals": "The same on values that hide it from any single element.",
}

_ASKED_MODULE = '''"""The specs that are asked about, with their checks from asked.json."""

import dataclasses
import json
from pathlib import Path

from pytest_pallas.run.collection import suite

ASKED = json.loads(Path(__file__).with_name("asked.json").read_text())
SPECS = [
    dataclasses.replace(spec, checks=ASKED[spec.name], file=__file__)
    for package in {packages!r}
    for spec in suite(package).specs()
    if spec.name in ASKED
]
'''

# Nobody wants the simplest failure here, which takes the longest: the first one is told.
_CONFTEST = """import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.xfail(strict=False, reason="asked which checks fail"))
"""

type Checks = Mapping[str, Sequence[str] | None]


@dataclass(frozen=True)
class Caught:
    """A check that failed.

    Attributes:
      examples: after how many examples, the failing one included.
      words: what it said, in one line and without its own name.
    """

    kernel: str
    check: str
    backend: str
    examples: int
    words: str


@dataclass(frozen=True)
class Row:
    """A line of the table: what catches a kernel with every seed.

    Attributes:
      caught: by backend, the checks with the number of examples under the first seed.
    """

    family: str
    kernel: str
    wrong: str
    caught: Mapping[str, Mapping[str, int]]


def specs() -> dict[str, KernelSpec]:
    """Every spec of the packages that is asked about, by name."""
    every = [spec for package in PACKAGES for spec in suite(package).specs()]
    names = [spec.name for spec in every]
    assert len(set(names)) == len(names), sorted(names)
    return {spec.name: spec for spec in every if spec.name not in ONLY_ON_HARDWARE}


def is_right(name: str) -> bool:
    return name.endswith(RIGHT) or name in CONTROLS


def checks_of(spec: KernelSpec) -> tuple[str, ...] | None:
    """What a kernel is asked; None for every check that applies."""
    if spec.checks is None:
        return None if spec.family == "wrong_kernels" else ASKED
    return tuple(dict.fromkeys((*spec.checks, *ASKED)))


def ask(folder: Path, checks: Checks, *options: str, seed: int = 0) -> list[dict[str, Any]]:
    """The records of a run that asks each kernel of ``checks`` these checks, or all for None."""
    _write(folder, checks)
    words = ("-m", "pytest", *_arguments(seed, options))
    done = run_python(*words, cwd=folder, env=_environment(), ours=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return json.loads((folder / "results.json").read_text())["records"]


def _write(folder: Path, checks: Checks) -> None:
    """Write the project of a run."""
    folder.mkdir(parents=True)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text(_CONFTEST)
    (folder / "asked.py").write_text(_ASKED_MODULE.format(packages=PACKAGES))
    (folder / "asked.json").write_text(json.dumps(dict(checks)))
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(HERE / package, folder / package, ignore=ignored)


def _arguments(seed: int, options: Sequence[str]) -> list[str]:
    """The words of a run's command line."""
    return [
        *("-p", "no:cacheprovider", "-p", "no:jaxtyping", "-q", "--pallas-suite=asked"),
        *(f"--pallas-backend={','.join(BACKENDS)}", f"--pallas-seed={seed}"),
        *("--pallas-results=results.json", "--pallas-isolate=never", "--pallas-timeout=20"),
        *options,
    ]


def _environment() -> dict[str, str]:
    """The variables of a run: the CPU, and nobody's settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "HYPOTHESIS"))}
    return kept | {"JAX_PLATFORMS": "cpu"}


def caught(records: Iterable[Mapping[str, Any]]) -> list[Caught]:
    """The checks that failed. A backend is named without the chip that the spec claims."""
    return [
        Caught(r["kernel"], r["check"], r["backend"].partition(":")[0], r["examples"], _line(r))
        for r in records
        if r["outcome"] == "xfailed" and not _only_warns(r)
    ]


def _only_warns(record: Mapping[str, Any]) -> bool:
    """Whether ``grid`` says nothing but that chips refuse the small blocks of these kernels."""
    told = re.findall(r"^  (error|warning): ", record["message"], re.MULTILINE)
    return record["check"] == "grid" and {*told} == {"warning"}


def _line(record: Mapping[str, Any]) -> str:
    """``... on BACKEND: WORDS`` without what comes before the words."""
    first = record["message"].partition("\n")[0]
    return re.sub(rf"^.*?{re.escape(record['check'])} on \S+?:? ", "", first)


def failing(found: Iterable[Caught]) -> dict[str, list[str]]:
    """The checks that failed, by kernel."""
    checks: dict[str, list[str]] = {}
    for each in found:
        of_kernel = checks.setdefault(each.kernel, [])
        if each.check not in of_kernel:
            of_kernel.append(each.check)
    return checks


def rows(found: Sequence[Collection[Caught]]) -> list[Row]:
    """The table, from what failed under each seed; checks that some seed passes are left out."""
    first, *others = found
    always = {(c.kernel, c.check, c.backend) for c in first}
    for other in others:
        always &= {(c.kernel, c.check, c.backend) for c in other}
    forward = {(c.kernel, c.backend): c.words for c in first if c.check == "forward"}
    # Seen in every run, by whatever check; and what else goes wrong depends on how threads go on.
    watched = {(c.kernel, c.backend) for c in first if c.check in ("races", "dma", "deadlock")}
    made: list[Row] = []
    for name, spec in specs().items():
        if is_right(name):
            continue
        by_backend: dict[str, dict[str, int]] = {}
        for each in first:
            key = each.kernel, each.check, each.backend
            if each.kernel != name or key not in always:
                continue
            again = each.words == forward.get((name, each.backend))
            again |= (name, each.backend) in watched
            if each.check == "forward" or each.check in OWN_WORDS or not again:
                by_backend.setdefault(each.backend, {})[each.check] = each.examples
        made.append(Row(family_of(spec), name, _wrong(spec), by_backend))
    return sorted(made, key=lambda row: (row.family.lower(), row.kernel))


def family_of(spec: KernelSpec) -> str:
    return FAMILY.get(spec.name, OTHERS) if spec.family == "wrong_kernels" else spec.family


def _wrong(spec: KernelSpec) -> str:
    """What a kernel gets wrong, in its own words."""
    kernel: Any = spec.kernel
    function: Callable[..., Any] = (
        next(iter(kernel.values())) if isinstance(kernel, Mapping) else kernel
    )
    first = inspect.cleandoc(function.__doc__ or "").partition("\n\n")[0]
    return WORDS.get(spec.name, " ".join(first.split()).replace("``", "`"))


_HEAD = ("kernel", "what is wrong", *BACKENDS)


def rendered(table: Iterable[Row]) -> str:
    """The table as Markdown, a part for each family."""
    parts: list[str] = []
    families: dict[str, list[Row]] = {}
    for row in table:
        families.setdefault(row.family, []).append(row)
    for family, members in families.items():
        columns = [b for b in BACKENDS if any(b in row.caught for row in members)]
        on_chip = [H200] if any(row.kernel in ON_H200 for row in members) else []
        head = [*_HEAD[:2], *columns, *on_chip]
        lines = [f"### {family[0].upper()}{family[1:]}", "", _line_of(head)]
        lines.append(_line_of(["---"] * len(head)))
        for row in members:
            cells = [_cell(row.caught.get(backend, {})) for backend in columns]
            cells += [ON_H200.get(row.kernel, "-") for _ in on_chip]
            lines.append(_line_of([f"`{row.kernel}`", row.wrong.replace("|", "\\|"), *cells]))
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _line_of(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(checks: Mapping[str, int]) -> str:
    return ", ".join(f"{check} {examples}" for check, examples in checks.items()) or "-"


def listed(page: str) -> dict[str, dict[str, dict[str, int]]]:
    """What a page's table says: by kernel and backend, the checks with their numbers."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    columns: list[str] = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells[:2] == list(_HEAD[:2]):
            columns = cells[2:]
        elif cells and (name := re.fullmatch(r"`(\w+)`", cells[0])):
            found[name[1]] = {
                backend: {
                    check: int(number) for check, number in re.findall(r"([\w-]+) (\d+)", cell)
                }
                for backend, cell in zip(columns, cells[2:], strict=True)
                if cell != "-" and backend in BACKENDS
            }
    return found


BEGIN, END = "<!-- table: begin -->\n", "\n<!-- table: end -->"


def filled(page: str, table: str) -> str:
    """A page with another table between its two comments."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table}{END}{after}"
