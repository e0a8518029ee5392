"""The points of a kernel's code that coverage counts, and the counts of one run.

A rule asks for a ``Site`` of its equation once, and counts at it each time that it is evaluated
inside of a kernel. What JAX's own loops and branches do is not counted. At the end,
``Coverage.reached`` gives what the run reached, by line.
"""

from __future__ import annotations

import ast
import functools
import linecache
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Any, NamedTuple

import numpy as np

from pallas_sim.compat.jaxprs import is_literal
from pallas_sim.compat.source import Spot, call_of_user, move_of_block
from pallas_sim.conditions import Interval, KernelConditions, line_test, opposite
from pallas_sim.coverage import Kind, Need, Point, Reached
from pallas_sim.registry import Equation
from pallas_sim.transforms import AxisSlice, Indexed, Operand, RefPart, Untiled

_BRANCH = ("false", "true")
_LOOP = ("none", "one", "several")
_RING = ("first", "again")
_MASK = ("full", "partial", "empty")

#: The functions of JAX through which a user asks for a branch or a selection.
_BRANCHES = frozenset({"cond", "_cond", "switch", "when", "_wrapped", "piecewise"})
_SELECTIONS = frozenset({"where", "select", "select_n"})


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """One equation at which a run goes one of several ways.

    Attributes:
      kind: as of ``Point``.
      ways: their names.
      equation: JAX's.
      line: ``file:line`` of the user's code.
      spot: where in that line the user's call is, or None.
      decides: position of the operand that decides.
      points: its point in each kernel that has come there.
    """

    kind: Kind
    ways: tuple[str, ...]
    equation: Any
    line: str
    spot: Spot | None = None
    decides: int = 0
    points: dict[str, Point] = field(default_factory=dict[str, Point])

    @property
    def condition(self) -> str:
        """What decides, as the source has it; or ""."""
        return _condition(self.spot)[0]

    def point(self, kernel: str) -> Point:
        """Return its point in a kernel."""
        point = self.points.get(kernel)
        if point is None:
            name = _condition(self.spot)[1]
            point = self.points[kernel] = Point(self.kind, self.line, kernel, name)
        return point


def branch_site(eqn: Equation) -> Site | None:
    """Return the site of a ``cond``; None if JAX branches on its own account."""
    call = call_of_user(eqn.origin)
    if call is None or call.in_pipeline or _nearest(call.functions) not in _BRANCHES:
        return None
    count = len(eqn.params["branches"])
    of_switch = count != 2 or "switch" in call.functions
    ways = tuple(map(str, range(count))) if of_switch else _BRANCH
    return Site("branch", ways, eqn.origin, eqn.line, call.spot)


def loop_site(eqn: Equation) -> Site | None:
    """Return the site of a loop; None if it is one of JAX's own."""
    call = call_of_user(eqn.origin)
    if call is None or call.in_pipeline:
        return None
    return Site("loop", _LOOP, eqn.origin, eqn.line, call.spot)


def operand_site(eqn: Equation) -> Site | None:
    """Return the site of an equation with a mask or a predicate; None of any other equation."""
    position = _deciding(eqn)
    if position is None:
        return None
    call, shape = call_of_user(eqn.origin), tuple(getattr(eqn.ins[position], "shape", ()))
    if call is None or call.in_pipeline:
        return None
    if eqn.name in _SELECTING and _nearest(call.functions) not in _SELECTIONS:
        return None
    if not shape:
        return Site("branch", _BRANCH, eqn.origin, eqn.line, call.spot, position)
    if math.prod(shape) < 2:
        return None
    return Site("mask", _MASK, eqn.origin, eqn.line, call.spot, position)


#: ``select_n``, and the call of JAX's function that ``jnp.where`` makes of it.
_SELECTING = ("select_n", "jit", "pjit")


def _deciding(eqn: Equation) -> int | None:
    """Return the position of a mask or predicate among the operands, or None."""
    name, params = eqn.name, eqn.params
    if name in _SELECTING:
        is_selection = name == "select_n" or params.get("name") == "_where"
        which = eqn.ins[0] if is_selection and eqn.ins else None
        return 0 if getattr(which, "dtype", None) == np.bool_ else None
    if params.get("has_user_predicate") or params.get("has_mask"):
        return len(eqn.ins) - 1
    tree = _MASKED.get(name)
    if tree is None or tree not in params:
        return None
    operands = eqn.operands_in(tree)
    mask = operands[-2 if name == "masked_load" else -1]
    return mask.position if isinstance(mask, Operand) else None


#: Primitives that have a mask, and the parameter with the tree of their operands.
_MASKED = {"masked_load": "args_tree", "masked_swap": "args_tree", "gather": "tree"}
_MASKED["scatter"] = "tree"


def is_of_user(eqn: Equation) -> bool:
    """Return whether the user's code made an equation, and no pipeline of JAX's."""
    call = call_of_user(eqn.origin)
    return call is not None and not call.in_pipeline


def _nearest(functions: Sequence[str]) -> str:
    """Return JAX's function that the user called."""
    own = [name for name in functions if name != "reraise_with_filtered_traceback"]
    return own[-1] if own else ""


@dataclass(frozen=True, slots=True, eq=False)
class SlotSite:
    """One side of a copy, or its semaphore, that is a slot of memory that may take turns.

    Attributes:
      equation: JAX's.
      line: ``file:line`` of the user's code.
      position: of the reference among the operands.
      slot: the index along its first axis: a number, or an operand.
      slots: the length of that axis.
      fills: whether the copy writes there.
      in_pipeline: whether a pipeline of JAX's copies, whose buffers take turns.
      is_part: whether it is a slice, which may be a part of a block as well.
    """

    equation: Any
    line: str
    position: int
    slot: Any
    slots: int
    fills: bool
    in_pipeline: bool
    is_part: bool

    @property
    def of_operand(self) -> bool:
        """Whether the slot is known only when the kernel runs."""
        return isinstance(self.slot, Operand)


@dataclass(frozen=True, slots=True, eq=False)
class CopySlots:
    """The slots that a copy names.

    Attributes:
      sides: positions of source and target among the operands.
      buffers: the slots of these.
      semaphore: the slot of its semaphore or barrier, or None.
    """

    sides: tuple[int, int]
    buffers: tuple[SlotSite, ...]
    semaphore: SlotSite | None


def copy_slots(
    eqn: Equation, source: RefPart, target: RefPart, semaphore: RefPart | None
) -> CopySlots | None:
    """Return the slots that a copy names, also of a pipeline of JAX's; None if it names none.

    Args:
      eqn: of the copy.
      source: what it reads.
      target: what it writes.
      semaphore: the semaphore or barrier that says when it is done, or None.
    """
    sides = [_slot_site(eqn, source, fills=False), _slot_site(eqn, target, fills=True)]
    buffers = tuple(site for site in sides if site is not None)
    of_semaphore = semaphore and _slot_site(eqn, semaphore, fills=True)
    if not buffers and of_semaphore is None:
        return None
    if call_of_user(eqn.origin) is None and move_of_block(eqn.origin) is None:
        return None
    return CopySlots((source.position, target.position), buffers, of_semaphore)


def _slot_site(eqn: Equation, part: RefPart, *, fills: bool) -> SlotSite | None:
    window = [step for step in part.window if not isinstance(step, Untiled)]
    first = window[0] if window else None
    if not isinstance(first, Indexed) or not first.indices or first.shape[0] < 2:
        return None
    index = first.indices[0]
    is_part = isinstance(index, AxisSlice)
    if isinstance(index, AxisSlice) and index.size == 1:
        index = index.start
    if isinstance(index, Operand):
        if getattr(eqn.ins[index.position], "shape", ()) != ():
            return None
        atom = eqn.origin.invars[index.position]
        index = int(atom.val) if is_literal(atom) else index
    elif not isinstance(index, int):
        return None
    in_pipeline = move_of_block(eqn.origin) is not None
    return SlotSite(
        eqn.origin, eqn.line, part.position, index, first.shape[0], fills, in_pipeline, is_part
    )


class _Launch(NamedTuple):
    """A kernel that began: JAX's equation, and the sizes of the grid that its body sees."""

    equation: Any
    sizes: tuple[int, ...]


@dataclass(eq=False)
class _Ring:
    """What a run did with the slots of some memory.

    Attributes:
      line: of the first copy.
      slots: how many there are.
      counts: how often a slot was first used, and again: by copies from it, and to it.
      used: the most uses of all slots together, in one run of the kernel.
      sites: the slots that each site used, with the other side of its copies.
      remote: whether another device took part.
    """

    line: str
    slots: int
    counts: dict[bool, list[int]] = field(default_factory=lambda: {False: [0, 0], True: [0, 0]})
    used: int = 0
    sites: dict[tuple[SlotSite, str, str], set[int]] = field(default_factory=dict[Any, Any])
    remote: bool = False


#: How often a mask is partial until it is no longer looked at.
_LOOKS = 8


@dataclass(eq=False)
class Coverage:
    """Counts which ways a run goes inside of kernels."""

    _counts: dict[tuple[Site, str], list[int]] = field(default_factory=dict[Any, Any])
    _rings: dict[tuple[str, str], _Ring] = field(default_factory=dict[Any, Any])
    _facts: dict[Point, list[int]] = field(default_factory=dict[Any, Any])
    _open: dict[int, list[tuple[dict[Any, int], Any]]] = field(default_factory=dict[Any, Any])
    _kernels: dict[str, dict[int, _Launch]] = field(default_factory=dict[Any, Any])

    def enter(self, kernel: str, equation: Any, sizes: Sequence[int]) -> None:
        """Note that a kernel begins.

        Args:
          kernel: its name.
          equation: JAX's.
          sizes: of the grid that its body sees.
        """
        self._kernels.setdefault(kernel, {})[id(equation)] = _Launch(equation, tuple(sizes))

    def count(self, site: Site, kernel: str, way: int) -> None:
        """Note that a run of a kernel goes a way at a site."""
        counts = self._counts.get((site, kernel))
        if counts is None:
            counts = self._counts[site, kernel] = [0] * len(site.ways)
        counts[way] += 1

    def look(self, site: Site, kernel: str, value: Any) -> None:
        """Note what a mask or a predicate is. Masks are no longer looked at after some."""
        if site.kind == "branch":
            self.count(site, kernel, int(bool(value)))
            return
        counts = self._counts.get((site, kernel))
        if counts is None:
            counts = self._counts[site, kernel] = [0, 0, 0]
        if counts[1] < _LOOKS:
            true = np.count_nonzero(value)
            counts[0 if true == value.size else 1 if true else 2] += 1

    def use(
        self,
        slots: CopySlots,
        kernel: str,
        operands: Sequence[Any],
        until: Any,
        *,
        remote: bool = False,
    ) -> None:
        """Note which slots a copy uses, of its buffers or else of its semaphores.

        Copies to a slot that nothing has waited for fill it together.

        Args:
          slots: of the copy.
          kernel: its name.
          operands: of the equation.
          until: the semaphore or barrier that ends the use, or None.
          remote: whether another device takes part.
        """
        names = [operands[position].name for position in slots.sides]
        sites = [site for site in slots.buffers if operands[site.position].uses is not None]
        if not sites and slots.semaphore is not None:
            sites = [slots.semaphore]
        for site in sites:
            ref = operands[site.position]
            uses: dict[Any, Any] | None = ref.uses
            if uses is None:
                continue
            slot = int(operands[site.slot.position] if site.of_operand else site.slot)
            ring = self._rings.get((ref.name, kernel))
            if ring is None:
                ring = self._rings[ref.name, kernel] = _Ring(
                    site.line or uses.get("line", ""), site.slots
                )
            key, opened = (site.fills, slot), (site.fills, slot, "open")
            if not uses.get(opened):
                uses[key] = count = uses.get(key, 0) + 1
                ring.counts[site.fills][count > 1] += 1
                uses[site.fills] = total = uses.get(site.fills, 0) + 1
                ring.used = max(ring.used, total)
                if until is not None:
                    uses[opened] = 1
                    self._open.setdefault(id(until), []).append((uses, opened))
            ring.remote |= remote
            ring.sites.setdefault((site, *names), set()).add(slot)

    def close(self, until: Any) -> None:
        """Note a wait for a semaphore or barrier: the next copy uses a slot anew."""
        for uses, key in self._open.pop(id(until), ()):
            uses[key] = 0

    def note(self, point: Point, first: int, second: int) -> None:
        """Note how often a run goes both ways at a point that is no equation's."""
        counts = self._facts.get(point)
        if counts is None:
            counts = self._facts[point] = [0, 0]
        counts[0] += first
        counts[1] += second

    def reached(self) -> tuple[Reached, ...]:
        """Return what was reached so far, in order of the lines."""
        launches = {kernel: tuple(launches.values()) for kernel, launches in self._kernels.items()}
        groups: dict[Point, tuple[list[Site], list[int]]] = {}
        for (site, kernel), counts in self._counts.items():
            point = site.point(kernel)
            sites, sums = groups.setdefault(point, ([], [0] * len(counts)))
            sites.append(site)
            sums[:] = map(add, sums, counts)
        reached: list[Reached] = []
        for point, (sites, sums) in groups.items():
            reached.append(
                _of_sites(point, tuple(sites), tuple(sums), launches.get(point.kernel, ()))
            )
        for (name, kernel), ring in self._rings.items():
            first, again = ring.counts[any(ring.counts[True])]
            if again or _takes_turns(ring, launches.get(kernel, ())):
                reached.append(
                    Reached(
                        point=Point("ring", ring.line, kernel, name),
                        counts={"first": first, "again": again} if again else {"first": first},
                        missing=() if again else ("again",),
                        slots=ring.slots,
                        used=ring.used,
                    )
                )
        reached += [_of_fact(point, tuple(sums)) for point, sums in self._facts.items()]
        return tuple(sorted(reached, key=_order))


def _order(reached: Reached) -> Point:
    return reached.point


# Runs of one program reach the same again and again, so what they reached is kept.


@functools.lru_cache(maxsize=2048)
def _of_fact(point: Point, sums: tuple[int, ...]) -> Reached:
    ways = zip(_FACTS[point.kind], sums, strict=True)
    return Reached(point=point, counts={way: count for way, count in ways if count})


@functools.lru_cache(maxsize=2048)
def _of_sites(
    point: Point, sites: tuple[Site, ...], sums: tuple[int, ...], launches: tuple[_Launch, ...]
) -> Reached:
    counts = {way: count for way, count in zip(sites[0].ways, sums, strict=True) if count}
    rest = _rest(sites, tuple(map(bool, sums)), launches)
    return Reached(point=point, counts=counts, **rest)


@functools.lru_cache(maxsize=2048)
def _rest(
    sites: tuple[Site, ...], gone: tuple[bool, ...], launches: tuple[_Launch, ...]
) -> Mapping[str, Any]:
    """Return what is known of a point besides its counts, as fields of ``Reached``.

    Args:
      sites: of the point.
      gone: for each way, whether a run went it.
      launches: of its kernel.
    """
    ways = sites[0].ways
    rest: dict[str, Any] = {"condition": sites[0].condition}
    if all(gone) or (sites[0].kind == "mask" and gone[ways.index("partial")]):
        return rest
    done = {way for way, went in zip(ways, gone, strict=True) if went}
    parts = [_open_ways(site, done, launches) for site in sites]
    missing = dict.fromkeys(way for part in parts for way in part.get("missing", ()))
    unreachable = {way: text for part in parts for way, text in part["unreachable"].items()}
    rest["missing"] = tuple(missing)
    rest["unreachable"] = {way: text for way, text in unreachable.items() if way not in missing}
    rest["depends"] = tuple(dict.fromkeys(thing for part in parts for thing in part["depends"]))
    rest["needs"] = {way: need for part in parts for way, need in part["needs"].items()}
    return rest


def _open_ways(site: Site, gone: Collection[str], launches: Sequence[_Launch]) -> Mapping[str, Any]:
    """Return missing and unreachable ways of a site, and what they depend on."""
    value, conditions = _known(site, launches)
    if site.kind == "mask":
        ways = _open_of_mask(value)
    elif site.kind == "loop":
        ways = _open_of_loop(value)
    else:
        ways = {way: _is_possible(site, way, value) for way in site.ways}
    ways = {way: possible for way, possible in ways.items() if way not in gone}
    needs = {way: _need(site, way, value) for way in ways}
    return {
        "missing": [way for way, possible in ways.items() if possible],
        "unreachable": {
            way: _reason(site, value, conditions) for way, possible in ways.items() if not possible
        },
        "depends": value.sources if ways else (),
        "needs": {way: need for way, need in needs.items() if need is not None},
    }


def _known(site: Site, launches: Sequence[_Launch]) -> tuple[Interval, KernelConditions | None]:
    """Return what is known of what decides at a site, and the conditions of its kernel."""
    conditions = _conditions(site.equation, launches)
    if conditions is None:
        return Interval(), None
    if site.kind == "loop":
        return conditions.of_rounds(site.equation), conditions
    return conditions.of_operand(site.equation, site.decides), conditions


def _conditions(equation: Any, launches: Sequence[_Launch]) -> KernelConditions | None:
    """Return the conditions of the kernel that has an equation."""
    return next(
        (conditions for launch in launches if (conditions := _conditions_of(launch)).has(equation)),
        None,
    )


@functools.lru_cache(maxsize=32)
def _conditions_of(launch: _Launch) -> KernelConditions:
    return KernelConditions(launch.equation, launch.sizes)


def _takes_turns(ring: _Ring, launches: Sequence[_Launch]) -> bool:
    """Return whether slots take turns, of which none was used again.

    They do in a pipeline of JAX's, and if the index goes round. If the trace has the index as a
    number, they do unless each slot has something of its own: all of them are used, each by another
    line or for something else, or by other devices.
    """
    dynamic = {site for site, *_ in ring.sites if site.of_operand}
    if dynamic:
        return any(site.in_pipeline or _goes_round(site, launches) for site in dynamic)
    slots = set[int]().union(*ring.sites.values())
    if ring.remote:
        return False
    lines: dict[tuple[str, ...], set[int]] = {}
    for (site, *names), used in ring.sites.items():
        lines.setdefault((site.line, *names), set()).update(used)
    if len(slots) == 1 and all(site.is_part for site, *_ in ring.sites):
        return False
    return len(slots) < ring.slots or any(len(used) > 1 for used in lines.values())


def _goes_round(site: SlotSite, launches: Sequence[_Launch]) -> bool:
    conditions = _conditions(site.equation, launches)
    index = site.slot.position
    return conditions is not None and conditions.of_operand(site.equation, index).turns


#: The ways of what has no equation of the user's.
_FACTS: dict[Kind, tuple[str, str]] = {
    "block": ("whole", "overhang"),
    "revisit": ("first", "again"),
    "wait": ("blocked", "at once"),
}


def _open_of_mask(value: Interval) -> Mapping[str, bool]:
    """Return whether a mask that was never partial can be, in this program; nothing if it may not.

    Whether floats compare so is up to the values, which no size changes.
    """
    constant = value.constant is not None or not value.sources
    return {} if value.measures else {"partial": not constant}


def _open_of_loop(rounds: Interval) -> Mapping[str, bool]:
    """Return the ways that a loop should go, and whether it can in this program.

    None and one are ways of a loop whose bounds are not known before.
    """
    ways = {"several": rounds.high >= 2}
    if rounds.counts and rounds.constant is None:
        ways |= {"none": True} if rounds.low <= 0 else {}
        ways |= {"one": True} if rounds.low <= 1 <= rounds.high else {}
    return ways


def _is_possible(site: Site, way: str, value: Interval) -> bool:
    number = site.ways.index(way)
    last = len(site.ways) - 1
    low, high = max(0, min(value.low, last)), max(0, min(value.high, last))
    return low <= number <= high


def _reason(site: Site, value: Interval, conditions: KernelConditions | None) -> str:
    """Return why a program cannot go a way."""
    if site.kind == "mask":
        return "the mask is constant in this program"
    if len(value.sources) == 1 and conditions is not None:
        axis = conditions.axis_of(value.sources[0])
        if axis:
            return axis
    if site.kind == "loop":
        rounds = int(value.high)
        return f"the loop has {'at most ' * (value.low < rounds)}{_counted(rounds, 'round')} here"
    return "the condition is constant in this program"


def _need(site: Site, way: str, value: Interval) -> Need | None:
    """Return what must hold of one thing for a run to go a way; None if that is not plain."""
    if site.kind == "mask":
        return None
    if site.kind == "loop":
        least = {"several": (">=", 2), "one": ("==", 1), "none": ("<=", 0)}[way]
        need = line_test(value, *least)
    elif site.ways == _BRANCH:
        need = value.test if way == "true" else opposite(value.test)
    else:
        need = line_test(value, "==", int(way))
    if need is None or need[0][0] in ("scalar", "memory"):
        return need
    _, sign, least = need
    return need if sign in (">", ">=", "!=") or least > 0 or (least == 0 and "=" in sign) else None


def note_wait(thread: Any, name: str, line: str, *, blocked: bool) -> None:
    """Note that a thread waits for a semaphore or barrier, and whether that blocks it."""
    if thread.kernels:
        coverage: Coverage = thread.machine.coverage
        point = Point("wait", line, thread.kernels[-1], name.partition("[")[0])
        coverage.note(point, int(blocked), int(not blocked))


# The text of a condition, from the source of the kernel.


def _condition(spot: Spot | None) -> tuple[str, str]:
    """Return the text of the condition of a call, and its name if its line has several alike."""
    source = "" if spot is None else "".join(linecache.getlines(spot.file))
    if spot is None or not source:
        return "", ""
    calls = _calls(source).get(spot.line, {})
    function, text = calls.get(spot.column, ("", ""))
    kind = _DECIDERS[function][0] if function else ""
    alike = [other for other, _ in calls.values() if _DECIDERS[other][0] == kind]
    if len(alike) < 2:
        return text, ""
    return text, text if alike.count(function) == len(alike) else f"{function}: {text}"


@functools.lru_cache(maxsize=64)
def _calls(source: str) -> Mapping[int, Mapping[int, tuple[str, str]]]:
    """Return function and condition of each call that has one, by line and column."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return {}
    calls: dict[int, dict[int, tuple[str, str]]] = {}
    lines = source.encode().splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (decider := _decider(node)) is not None:
            function, condition = decider
            line = calls.setdefault(node.lineno, {})
            line.setdefault(node.col_offset, (function, _text(lines, condition)))
    return calls


def _text(lines: Sequence[bytes], node: ast.expr) -> str:
    """Return an expression as the source has it, in one line."""
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    text = list(lines[first : last + 1])
    text[-1] = text[-1][: node.end_col_offset]
    text[0] = text[0][node.col_offset :]
    return " ".join(line.decode().strip() for line in text)


#: Where in a call its condition is: the kind, the position, and the name of the parameter.
_DECIDERS: dict[str, tuple[Kind, int, str]] = {
    "when": ("branch", 0, "condition"),
    "cond": ("branch", 0, "pred"),
    "switch": ("branch", 0, "index"),
    **dict.fromkeys(("copy_gmem_to_smem", "copy_smem_to_gmem"), ("branch", 9, "predicate")),
    "where": ("mask", 0, "condition"),
    "select": ("mask", 0, "pred"),
    "select_n": ("mask", 0, "which"),
    **dict.fromkeys(("load", "store", "swap", "load_gather", "store_scatter"), ("mask", 9, "mask")),
    "while_loop": ("loop", 0, "cond_fun"),
    **dict.fromkeys(("fori_loop", "loop", "parallel_loop"), ("loop", 1, "upper")),
    "scan": ("loop", 3, "length"),
}


def _decider(call: ast.Call) -> tuple[str, ast.expr] | None:
    """Return the function of JAX that is called, and its condition, or None."""
    function = call.func
    if isinstance(function, ast.Call):  # ``pl.when(condition)(body)``
        return _decider(function)
    name = getattr(function, "attr", getattr(function, "id", ""))
    if name not in _DECIDERS:
        return None
    _, position, parameter = _DECIDERS[name]
    named = [keyword.value for keyword in call.keywords if keyword.arg == parameter]
    value = named[0] if named else call.args[position] if position < len(call.args) else None
    value = value.body if isinstance(value, ast.Lambda) else value
    return None if value is None else (name, value)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
