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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pallas_sim.compat.jaxprs import is_literal
from pallas_sim.compat.source import Spot, call_of_user
from pallas_sim.conditions import Interval, KernelConditions, line_test, opposite
from pallas_sim.coverage import Kind, Need, Point, Reached, merged
from pallas_sim.registry import Equation
from pallas_sim.transforms import AxisSlice, Indexed, Operand, RefPart

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
    """

    kind: Kind
    ways: tuple[str, ...]
    equation: Any
    line: str
    spot: Spot | None = None
    decides: int = 0

    @property
    def condition(self) -> str:
        """What decides, as the source has it; or ""."""
        return _condition(self)[0]

    def point(self, kernel: str) -> Point:
        """Return its point in a kernel."""
        return Point(self.kind, self.line, kernel, _condition(self)[1])


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
    if not shape:
        return Site("branch", _BRANCH, eqn.origin, eqn.line, call.spot, position)
    if math.prod(shape) < 2 or (
        eqn.name in _SELECTING and _nearest(call.functions) not in _SELECTIONS
    ):
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
        is_mask = getattr(which, "shape", ()) and getattr(which, "dtype", None) == np.bool_
        return 0 if is_mask else None
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
    """

    equation: Any
    line: str
    position: int
    slot: Any
    slots: int
    fills: bool

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
    """Return the slots that a copy names; None if it names none, or JAX starts it.

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
    if not is_of_user(eqn):
        return None
    return CopySlots((source.position, target.position), buffers, of_semaphore)


def _slot_site(eqn: Equation, part: RefPart, *, fills: bool) -> SlotSite | None:
    first = part.window[0] if part.window else None
    if not isinstance(first, Indexed) or not first.indices or first.shape[0] < 2:
        return None
    index = first.indices[0]
    if isinstance(index, AxisSlice) and index.size == 1:
        index = index.start
    if isinstance(index, Operand):
        if getattr(eqn.ins[index.position], "shape", ()) != ():
            return None
        atom = eqn.origin.invars[index.position]
        index = int(atom.val) if is_literal(atom) else index
    elif not isinstance(index, int):
        return None
    return SlotSite(eqn.origin, eqn.line, part.position, index, first.shape[0], fills)


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
    _facts: dict[tuple[Kind, str, str, str], list[int]] = field(default_factory=dict[Any, Any])
    _open: dict[int, list[tuple[dict[Any, int], Any]]] = field(default_factory=dict[Any, Any])
    _kernels: dict[str, dict[int, tuple[Any, tuple[int, ...]]]] = field(
        default_factory=dict[str, Any]
    )

    def enter(self, kernel: str, equation: Any, sizes: Sequence[int]) -> None:
        """Note that a kernel begins.

        Args:
          kernel: its name.
          equation: JAX's.
          sizes: of the grid that its body sees.
        """
        self._kernels.setdefault(kernel, {})[id(equation)] = equation, tuple(sizes)

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
            counts[0 if true == np.size(value) else 1 if true else 2] += 1

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
            uses: dict[Any, int] | None = ref.uses
            if uses is None:
                continue
            slot = int(operands[site.slot.position] if site.of_operand else site.slot)
            ring = self._rings.get((ref.name, kernel))
            if ring is None:
                ring = self._rings[ref.name, kernel] = _Ring(site.line, site.slots)
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

    def note(self, kind: Kind, line: str, kernel: str, name: str, way: int) -> None:
        """Note that a run goes a way, of a kind that has no equation of the user's."""
        key = (kind, line, kernel, name)
        counts = self._facts.get(key)
        if counts is None:
            counts = self._facts[key] = [0, 0]
        counts[way] += 1

    def reached(self) -> tuple[Reached, ...]:
        """Return what was reached so far, in order of the lines."""
        sites = [
            self._of_site(site, kernel, counts) for (site, kernel), counts in self._counts.items()
        ]
        rings = [self._of_ring(name, kernel, ring) for (name, kernel), ring in self._rings.items()]
        facts = [
            Reached(
                point=Point(kind, line, kernel, name),
                counts={way: n for way, n in zip(_FACTS[kind], counts, strict=True) if n},
            )
            for (kind, line, kernel, name), counts in self._facts.items()
        ]
        return merged([[*sites, *filter(None, rings), *facts]])

    def _of_site(self, site: Site, kernel: str, counts: Sequence[int]) -> Reached:
        gone = {way: count for way, count in zip(site.ways, counts, strict=True) if count}
        reached = Reached(point=site.point(kernel), counts=gone, condition=site.condition)
        if len(gone) == len(site.ways) or (site.kind == "mask" and "partial" in gone):
            return reached
        value, conditions = self._known(site, kernel)
        if site.kind == "mask":
            return replace(reached, **_open_of_mask(value))
        open_ways = (
            _open_of_loop(site, value, gone)
            if site.kind == "loop"
            else ({way: _is_possible(site, way, value) for way in site.ways if way not in gone})
        )
        return replace(
            reached,
            missing=tuple(way for way, possible in open_ways.items() if possible),
            unreachable={
                way: _reason(site, value, conditions)
                for way, possible in open_ways.items()
                if not possible
            },
            depends=value.sources,
            needs={way: need for way in open_ways if (need := _need(site, way, value)) is not None},
        )

    def _known(self, site: Site, kernel: str) -> tuple[Interval, KernelConditions | None]:
        """Return what is known of what decides at a site, and the conditions of its kernel."""
        conditions = self._conditions(site.equation, kernel)
        if conditions is None:
            return Interval(), None
        if site.kind == "loop":
            return conditions.of_rounds(site.equation), conditions
        return conditions.of_operand(site.equation, site.decides), conditions

    def _conditions(self, equation: Any, kernel: str) -> KernelConditions | None:
        """Return the conditions of the kernel of this name that has an equation."""
        for launched, sizes in self._kernels.get(kernel, {}).values():
            conditions = _conditions_of(launched, sizes)
            if conditions.has(equation):
                return conditions
        return None

    def _of_ring(self, name: str, kernel: str, ring: _Ring) -> Reached | None:
        first, again = ring.counts[any(ring.counts[True])]
        if not again and not self._takes_turns(kernel, ring):
            return None
        return Reached(
            point=Point("ring", ring.line, kernel, name),
            counts={"first": first, "again": again} if again else {"first": first},
            missing=() if again else ("again",),
            slots=ring.slots,
            used=ring.used,
        )

    def _takes_turns(self, kernel: str, ring: _Ring) -> bool:
        """Return whether slots take turns, of which none was used again.

        They do if the index goes round. If the trace has the index as a number, they do unless
        each slot has something of its own: all of them are used, each by another line or for
        something else, or by other devices.
        """
        dynamic = {site for site, *_ in ring.sites if site.of_operand}
        if dynamic:
            return any(self._goes_round(kernel, site) for site in dynamic)
        slots = set[int]().union(*ring.sites.values())
        if ring.remote:
            return False
        lines: dict[tuple[str, ...], set[int]] = {}
        for (site, *names), used in ring.sites.items():
            lines.setdefault((site.line, *names), set()).update(used)
        return len(slots) < ring.slots or any(len(used) > 1 for used in lines.values())

    def _goes_round(self, kernel: str, site: SlotSite) -> bool:
        conditions = self._conditions(site.equation, kernel)
        return (
            conditions is not None
            and conditions.of_operand(site.equation, site.slot.position).turns
        )


#: The ways of what has no equation of the user's.
_FACTS: dict[Kind, tuple[str, str]] = {
    "block": ("whole", "overhang"),
    "revisit": ("first", "again"),
    "wait": ("blocked", "at once"),
}


@functools.lru_cache(maxsize=32)
def _conditions_of(equation: Any, sizes: tuple[int, ...]) -> KernelConditions:
    return KernelConditions(equation, sizes)


def _open_of_mask(value: Interval) -> dict[str, Any]:
    """Return what is open at a mask that was never partial.

    Whether floats compare so is up to the values, which no size changes.
    """
    if value.measures:
        return {}
    if value.constant is not None or not value.sources:
        return {"unreachable": {"partial": "the mask is the same everywhere in this program"}}
    return {"missing": ("partial",), "depends": value.sources}


def _open_of_loop(site: Site, rounds: Interval, gone: Mapping[str, int]) -> dict[str, bool]:
    """Return the ways that a loop was not gone and should be, and whether this program can."""
    possible = {
        "none": rounds.low <= 0,
        "one": rounds.low <= 1 <= rounds.high,
        "several": rounds.high >= 2,
    }
    if rounds.constant is not None or not rounds.counts:
        possible = {"several": possible["several"]}
    able = {way: able for way, able in possible.items() if able or way == "several"}
    return {way: possible for way, possible in able.items() if way not in gone}


def _is_possible(site: Site, way: str, value: Interval) -> bool:
    number = site.ways.index(way)
    last = len(site.ways) - 1
    low, high = max(0, min(value.low, last)), max(0, min(value.high, last))
    return low <= number <= high


def _reason(site: Site, value: Interval, conditions: KernelConditions | None) -> str:
    """Return why a program cannot go a way."""
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
        coverage.note("wait", line, thread.kernels[-1], name.partition("[")[0], int(not blocked))


# The text of a condition, from the source of the kernel.


def _condition(site: Site) -> tuple[str, str]:
    """Return the text of a site's condition, and its name if its line has several of the kind."""
    spot = site.spot
    source = "" if spot is None else "".join(linecache.getlines(spot.file))
    if spot is None or not source:
        return "", ""
    calls = _calls(source).get(spot.line, {})
    function, text = calls.get(spot.column, ("", ""))
    alike = [other for other in calls.values() if other[0] == function]
    return text, text if len(alike) > 1 else ""


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


#: Where in a call its condition is: the position, and the name of the parameter.
_DECIDERS: dict[str, tuple[int, str]] = {
    "when": (0, "condition"),
    "cond": (0, "pred"),
    "switch": (0, "index"),
    "where": (0, "condition"),
    "select": (0, "pred"),
    "select_n": (0, "which"),
    "while_loop": (0, "cond_fun"),
    "fori_loop": (1, "upper"),
    "loop": (1, "upper"),
    "parallel_loop": (1, "upper"),
    "scan": (3, "length"),
    **dict.fromkeys(("load", "store", "swap", "load_gather", "store_scatter"), (9, "mask")),
    **dict.fromkeys(("copy_gmem_to_smem", "copy_smem_to_gmem"), (9, "predicate")),
}


def _decider(call: ast.Call) -> tuple[str, ast.expr] | None:
    """Return the function of JAX that is called, and its condition, or None."""
    function = call.func
    if isinstance(function, ast.Call):  # ``pl.when(condition)(body)``
        return _decider(function)
    name = getattr(function, "attr", getattr(function, "id", ""))
    if name not in _DECIDERS:
        return None
    position, parameter = _DECIDERS[name]
    named = [keyword.value for keyword in call.keywords if keyword.arg == parameter]
    value = named[0] if named else call.args[position] if position < len(call.args) else None
    value = value.body if isinstance(value, ast.Lambda) else value
    return None if value is None else (name, value)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
