"""The points of a kernel's code that coverage counts.

A rule asks for a ``Site`` of its equation once, and counts at it (``counts``) each time that it is
evaluated inside of a kernel. What JAX's own loops and branches do is not counted.
"""

from __future__ import annotations

import ast
import functools
import linecache
import math
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_sim.compat.jaxprs import is_literal, open_jaxpr, sub_jaxprs
from pallas_sim.compat.source import Spot, call_of_user, move_of_block
from pallas_sim.coverage import Kind, Point
from pallas_sim.registry import Equation
from pallas_sim.transforms import AxisSlice, Indexed, Operand, RefPart, Untiled

BRANCH = ("false", "true")
_LOOP = ("none", "one", "several")
_RING = ("first", "again")
_MASK = ("full", "partial", "empty")

#: The functions of JAX through which a user asks for a branch or a selection.
_BRANCHES = frozenset({"cond", "_cond", "switch", "when", "_wrapped", "piecewise"})
_SELECTIONS = frozenset({"where", "select", "select_n"})


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
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

    def __post_init__(self) -> None:
        _SITES[id(self.equation)] = self

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


#: What is around a site: another one, and the number of its way; None where there is nothing.
type Around = tuple[Site, int] | None

#: The site of each equation that has one, by its identity: a site keeps its equation alive.
_SITES: weakref.WeakValueDictionary[int, Site] = weakref.WeakValueDictionary()


def nested_sites(jaxpr: Any) -> Mapping[Site, Collection[Around]]:
    """Return the sites of a kernel's body, also of parts that never ran, with what is around each.

    That is the innermost branch or loop, and its way inside; None where there is none. A site is in
    several if its code is called in several places.
    """
    sites: dict[Site, dict[Around, None]] = {}
    entered: set[tuple[int, Around]] = set()

    def enter(inner: Any, around: Around) -> None:
        if (id(inner), around) in entered:
            return
        entered.add((id(inner), around))
        for eqn in inner.eqns:
            site = _SITES.get(id(eqn))
            if site is not None:
                sites.setdefault(site, {})[around] = None
            for body, way in _bodies(eqn):
                enter(body, (site, way) if site is not None and way is not None else around)

    enter(jaxpr, None)
    return sites


def _bodies(eqn: Any) -> Iterator[tuple[Any, int | None]]:
    """Yield the jaxprs in an equation, each with the number of its way; None if it has no own."""
    name, params = eqn.primitive.name, eqn.params
    if name == "cond":
        for number, branch in enumerate(params["branches"]):
            yield open_jaxpr(branch)[0], number
        return
    several = _LOOP.index("several") if name in ("while", "scan", "parallel_loop") else None
    condition = id(open_jaxpr(params["cond_jaxpr"])[0]) if name == "while" else None
    for inner in sub_jaxprs(eqn):
        yield inner, None if id(inner) == condition else several


def branch_site(eqn: Equation) -> Site | None:
    """Return the site of a ``cond``; None if JAX branches on its own account."""
    call = call_of_user(eqn.origin)
    if call is None or call.in_pipeline or _nearest(call.functions) not in _BRANCHES:
        return None
    count = len(eqn.params["branches"])
    of_switch = count != 2 or "switch" in call.functions
    ways = tuple(map(str, range(count))) if of_switch else BRANCH
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
        return Site("branch", BRANCH, eqn.origin, eqn.line, call.spot, position)
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


def turn_site(eqn: Equation, part: RefPart) -> SlotSite | None:
    """Return the slot that a store or a wait of the user's names; None if it is none, or fixed.

    A fixed one is a row of an array as often as a slot of a ring.
    """
    site = _slot_site(eqn, part, fills=True)
    return site if site is not None and site.of_operand and is_of_user(eqn) else None


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
