"""``pytest-pallas barriers SPEC``: which synchronisation the kernel of a spec needs, and from when.

The kernel is called with drawn examples on the mesh that was named and on smaller ones.
``pallas_sim.synchronization`` judges each call; here the judgements are put into one table.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pallas_sim.errors import OptionError, PallasError, first_line
from pytest_pallas.draw.meshes import DEVICES, sizes_of

if TYPE_CHECKING:
    from pallas_sim import SyncGroup, SynchronizationReport, SyncThreshold
    from pytest_pallas.spec import KernelSpec

_DESCRIPTION = """\
Find out which waits, signals, barriers and fences of a kernel are needed: what goes wrong without
each, and from how many devices on. Nothing is compiled, and no accelerator is used."""

#: The platforms of the simulators, by backend.
_SIMULATED = {"tpu-sim": "tpu", "gpu-sim": "gpu"}

#: Sizes of smaller meshes along an axis, besides those of ``DEVICES``.
_LARGER = (12, 16, 24, 32, 48, 64)


def add_parser(commands: Any) -> None:
    """Add the command ``barriers`` to the subparsers of an ``argparse.ArgumentParser``."""
    summary = "find out which waits and barriers of a kernel are needed"
    parser = commands.add_parser("barriers", help=summary, description=_DESCRIPTION)
    parser.add_argument(
        "spec", metavar="SPEC", help="MODULE:NAME of a KernelSpec, or a file that has one"
    )
    parser.add_argument(
        "--mesh",
        metavar="AXIS=SIZE,...",
        default="",
        help="the largest mesh, such as x=32 (default: the largest of the spec)",
    )
    parser.add_argument("--only", action="store_true", help="do not run smaller meshes")
    parser.add_argument("--target", default="", metavar="CHIP", help="such as v6e or h100")
    parser.add_argument(
        "--examples", type=int, default=4, metavar="N", help="calls for each mesh (default: 4)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the draws")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the table as a page")
    parser.set_defaults(run=run)


@dataclass(frozen=True, kw_only=True)
class BarrierRow:
    """A group of sites on all meshes.

    Attributes:
      group: on the largest mesh that has it, in the example in which it matters most.
      threshold: from how many devices on it is needed.
      removable: whether all rows for which this is true can be left out together, on the largest
        mesh; they are chosen greedily.
      reason: of the spec why it stays (``KernelSpec.redundant``); "" without one.
    """

    group: SyncGroup
    threshold: SyncThreshold
    removable: bool = False
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class RefusedMesh:
    """A smaller mesh on which the kernel cannot be judged.

    Attributes:
      mesh: sizes by axis.
      reason: a sentence.
    """

    mesh: Mapping[str, int]
    reason: str


@dataclass(frozen=True, kw_only=True)
class BarrierTable:
    """Which synchronisation the kernel of a spec needs.

    Attributes:
      spec: its name.
      target: the chip.
      mesh: sizes by axis of the largest mesh; empty without one.
      meshes: all meshes that were run, from the fewest devices.
      refused: those that could not be run.
      examples: calls that were judged, on all meshes.
      rows: in the order in which the kernel comes to them.
      seconds: that it took.
    """

    spec: str
    target: str
    mesh: Mapping[str, int] = field(default_factory=dict[str, int])
    meshes: tuple[Mapping[str, int], ...] = ()
    refused: tuple[RefusedMesh, ...] = ()
    examples: int = 0
    rows: tuple[BarrierRow, ...] = ()
    seconds: float = 0.0


def run(arguments: argparse.Namespace) -> int:
    """Judge the kernel, print the table, and write the files.

    Returns:
      The exit status: 0.

    Raises:
      OptionError: an argument cannot be used, or the kernel cannot be judged.
    """
    from pallas_sim import set_platforms
    from pytest_pallas.backends.devices import simulate

    if arguments.examples < 1:
        raise OptionError(f"--examples {arguments.examples}: at least one call is needed")
    for path in filter(None, (arguments.json, arguments.html)):
        if not path.absolute().parent.is_dir():
            raise OptionError(f"{path} cannot be written: there is no folder {path.parent}")
    if arguments.html is not None:
        from pytest_pallas.report.html import check_installed

        check_installed("--html")
    mesh = mesh_of(arguments.mesh)
    set_platforms()
    simulate(max(math.prod(mesh.values()), *DEVICES), os.environ, explicit=bool(mesh))
    spec = load_spec(arguments.spec)
    table = table_of(
        spec,
        mesh,
        target=arguments.target,
        examples=arguments.examples,
        seed=arguments.seed,
        smaller=not arguments.only,
    )
    print("\n".join(lines_of(table)))  # noqa: T201
    if arguments.json is not None:
        from pytest_pallas.decoding import jsonable

        _write(arguments.json, json.dumps(jsonable(table), indent=1))
    if arguments.html is not None:
        _write(arguments.html, page_of(table))
    return 0


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error.strerror or error}") from None


def mesh_of(text: str) -> dict[str, int]:
    """Return the sizes by axis that ``x=4,y=2`` stands for; empty for "".

    Raises:
      OptionError: it stands for none.
    """
    mesh: dict[str, int] = {}
    for word in text.split(",") if text else ():
        match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=\s*([1-9]\d{0,3})\s*", word)
        if match is None or match[1] in mesh:
            raise OptionError(
                f"--mesh {text}: write the size of each axis once, such as x=32 or x=4,y=2"
            )
        mesh[match[1]] = int(match[2])
    return mesh


def load_spec(target: str) -> KernelSpec:
    """Import the spec that ``MODULE:NAME`` names; a module or file will do if it has one spec.

    Raises:
      OptionError: there is no such spec, or there are several.
    """
    from pytest_pallas.loading import import_module
    from pytest_pallas.spec import KernelSpec

    name, _, attribute = target.partition(":")
    path = Path(name)
    if path.suffix == ".py":
        if not path.is_file():
            raise OptionError(f"there is no file {path}")
        if not path.absolute().is_relative_to(Path.cwd()):
            sys.path.insert(0, str(path.absolute().parent))
            name = path.stem
    module = import_module(name, target)
    specs = {key: one for key, one in vars(module).items() if isinstance(one, KernelSpec)}
    known = ", ".join(specs) or "none"
    if attribute:
        spec = specs.get(attribute)
        if spec is None:
            raise OptionError(f"{name} has no KernelSpec {attribute!r}; it has {known}")
        return spec
    if len(specs) != 1:
        raise OptionError(f"{name} has the specs {known}; write {name}:NAME for one of them")
    return next(iter(specs.values()))


def table_of(
    spec: KernelSpec,
    mesh: Mapping[str, int],
    *,
    target: str = "",
    examples: int = 4,
    seed: int = 0,
    smaller: bool = True,
) -> BarrierTable:
    """Judge the kernel of a spec.

    Args:
      spec: of the kernel.
      mesh: the largest mesh; empty for that of the spec.
      target: the chip; "" for the default one of a platform that the spec claims to be simulated.
      examples: calls for each mesh.
      seed: of the draws.
      smaller: whether smaller meshes are run, too.

    Raises:
      OptionError: the spec cannot take the mesh or target, the kernel is wrong or cannot be
        simulated, or it does not synchronise.
    """
    target = target_of(spec, target)
    meshes = _meshes(spec, mesh, smaller=smaller)
    reports: list[SynchronizationReport] = []
    refused: list[RefusedMesh] = []
    made: list[Mapping[str, int]] = []
    for sizes in meshes:
        try:
            reports += _reports(spec, sizes, target, examples, seed)
            made.append(sizes)
        except PallasError as error:
            if sizes == meshes[-1]:
                on = f" on {_shown(sizes)}" if sizes else ""
                raise OptionError(f"{spec.name}{on}: {first_line(error)}") from error
            refused.append(RefusedMesh(mesh=sizes, reason=first_line(error)))
    rows = tuple(_rows(spec, reports))
    if not rows:
        raise OptionError(
            f"{spec.name} does not synchronise: it has no wait, signal, barrier or fence of its own"
        )
    return BarrierTable(
        spec=spec.name,
        target=target,
        mesh=meshes[-1],
        meshes=tuple(made),
        refused=tuple(refused),
        examples=len(reports),
        rows=rows,
        seconds=sum(report.seconds for report in reports),
    )


def target_of(spec: KernelSpec, target: str) -> str:
    """Return the chip to simulate.

    Raises:
      OptionError: there is no such chip, or the kernel does not claim to run there.
    """
    from pallas_sim.chips import DEFAULT_TARGETS, TARGETS, Label

    claims = map(Label.of, spec.claimed)
    platforms = {_SIMULATED[one.name]: one.target for one in claims if one.name in _SIMULATED}
    if target and target not in TARGETS:
        raise OptionError(f"unknown target {target!r}; valid: {', '.join(TARGETS)}")
    if target and TARGETS[target].platform not in platforms:
        claimed = ", ".join(spec.claimed) or "no backend"
        raise OptionError(f"{spec.name} is not for {target}: it claims {claimed}")
    if not platforms:
        raise OptionError(
            f"{spec.name} claims neither tpu-sim nor gpu-sim, which run what the table is made of"
        )
    platform, chip = next(iter(platforms.items()))
    return target or chip or DEFAULT_TARGETS[platform]


def _meshes(spec: KernelSpec, mesh: Mapping[str, int], *, smaller: bool) -> list[Mapping[str, int]]:
    """Return the meshes to run, from the fewest devices."""
    if not spec.meshes:
        if mesh:
            raise OptionError(f"{spec.name} has no meshes: leave out --mesh {_shown(mesh)}")
        return [{}]
    if not mesh:
        mesh = max(
            (sizes_of(axes)[-1] for axes in spec.mesh_axes), key=lambda m: math.prod(m.values())
        )
    if not any(set(mesh) == set(axes) for axes in spec.mesh_axes):
        axes = " or ".join(", ".join(axes) for axes in spec.mesh_axes)
        raise OptionError(f"{spec.name} takes meshes with the axes {axes}, not {', '.join(mesh)}")
    if not smaller:
        return [mesh]
    sizes = [
        [*(n for n in (*DEVICES, *_LARGER) if n < size), size] if size > 1 else [1]
        for size in mesh.values()
    ]
    if len(sizes) > 1:  # in several directions only powers of two
        sizes = [[n for n in some if n & (n - 1) == 0 or n == some[-1]] for some in sizes]
    meshes = [dict(zip(mesh, some, strict=True)) for some in itertools.product(*sizes)]
    return sorted(meshes, key=lambda some: math.prod(some.values()))


def _reports(
    spec: KernelSpec, sizes: Mapping[str, int], target: str, examples: int, seed: int
) -> list[SynchronizationReport]:
    """Judge drawn calls on a mesh.

    Raises:
      PallasError: the kernel cannot be called or judged there.
    """
    from pallas_sim import synchronization
    from pallas_sim.chips import TARGETS
    from pytest_pallas.backends.devices import make_mesh
    from pytest_pallas.draw.arguments import as_arguments, larger_first
    from pytest_pallas.draw.arrays import strategy_errors
    from pytest_pallas.draw.examples import ExampleSource
    from pytest_pallas.draw.signatures import as_strategy

    mesh = make_mesh(sizes, "cpu") if sizes else None
    on_mesh: Mapping[str, Any] = {} if mesh is None else {"mesh": mesh}
    with strategy_errors():
        inputs: Any = spec.inputs if mesh is None else spec.inputs(mesh)  # pyright: ignore[reportCallIssue]
        strategy = as_strategy(spec.name, inputs)
    reports: list[SynchronizationReport] = []
    chosen = ExampleSource(strategy).choose(seed, examples, functools.partial(larger_first, spec))
    for drawn in chosen.values():
        call = as_arguments(drawn)
        kernel = spec.kernel_for(TARGETS[target].platform)
        options = {**call.options, **call.tuning, **on_mesh}
        try:
            reports.append(synchronization(kernel, *call.args, target=target, **options))
        except PallasError:
            raise
        except Exception as error:  # of the kernel's own wrapper
            raise PallasError(f"the kernel raised {type(error).__name__}: {error}") from error
    return reports


def _rows(spec: KernelSpec, reports: Sequence[SynchronizationReport]) -> Iterator[BarrierRow]:
    from pallas_sim import thresholds
    from pytest_pallas.checks.synchronization import reason_of

    serious = ("needed", "open", "end", "redundant")
    for threshold in thresholds(reports):
        sites = set(threshold.sites)
        devices = threshold.statuses[-1][0]
        last = [report for report in reports if report.devices == devices]
        groups = [
            (group, group in report.together)
            for report in last
            for group in report.groups
            if not sites.isdisjoint(group.sites)
        ]
        group = min((group for group, _ in groups), key=lambda group: serious.index(group.status))
        removable = all(together for _, together in groups)
        reason = reason_of(spec.redundant, [group for group, _ in groups])
        yield BarrierRow(group=group, threshold=threshold, removable=removable, reason=reason)


# The table, in a terminal and as a page.


def _shown(mesh: Mapping[str, int]) -> str:
    return ",".join(f"{axis}={size}" for axis, size in mesh.items())


def _title(table: BarrierTable) -> str:
    on = f" on {_shown(table.mesh)}" if table.mesh else ""
    return f"{table.spec}{on} ({table.target})"


def _calls(table: BarrierTable) -> str:
    return f"{table.examples} call{'s' * (table.examples != 1)}, {table.seconds:.1f} s"


def _removable(table: BarrierTable) -> list[str]:
    return [row.group.where for row in table.rows if row.removable]


def _refusals(table: BarrierTable) -> list[str]:
    return [f"not on {_shown(refused.mesh)}: {refused.reason}" for refused in table.refused]


def lines_of(table: BarrierTable) -> Iterator[str]:
    """Return the lines of the table."""
    yield f"{_title(table)}, {_calls(table)}"
    for row in table.rows:
        group, threshold = row.group, row.threshold
        yield f"  {status_text(row):<26}{group.where}, {group.count} times"
        yield f"{'':28}without: {group.effect}{group.shown_by}"
        if len({status for _, status in threshold.statuses}) > 1:
            by_size = ", ".join(f"{n}: {status}" for n, status in threshold.statuses)
            yield f"{'':28}by devices: {by_size}"
        if row.reason:
            yield f"{'':28}stays: {row.reason}"
    if removable := _removable(table):
        yield "  can be left out together (chosen greedily):"
        yield from (f"    {text}" for text in removable)
    yield from (f"  {reason}" for reason in _refusals(table))


def status_text(row: BarrierRow) -> str:
    """Return ``needed from 6 devices``, or the status."""
    threshold, needed = row.threshold, row.threshold.needed_from
    if needed is not None and needed > threshold.statuses[0][0]:
        return f"needed from {needed} devices"
    return {"end": "needed at the end"}.get(row.group.status, row.group.status)


def page_of(table: BarrierTable) -> str:
    """Render the table as self-contained HTML; needs jinja2."""
    from pytest_pallas.report.html import style, template

    sizes = sorted({size for row in table.rows for size, _ in row.threshold.statuses})
    rows = [
        {
            "status": status_text(row),
            "where": row.group.where,
            "count": row.group.count,
            "without": f"{row.group.effect}{row.group.shown_by}",
            "reason": row.reason,
            "statuses": [dict(row.threshold.statuses).get(size, "") for size in sizes],
        }
        for row in table.rows
    ]
    page: str = template("barriers.html.j2").render(
        title=f"Synchronisation of {_title(table)}",
        subtitle=_calls(table),
        sizes=[f"{size} device{'s' * (size != 1)}" for size in sizes],
        rows=rows,
        removable=_removable(table),
        refused=_refusals(table),
        **style(),
    )
    return page
