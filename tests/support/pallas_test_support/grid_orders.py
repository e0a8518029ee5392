"""Random kernels whose programs look at memory, and what an exploration finds of them.

The programs of a Triton grid change two variables atomically, look at them, once, in a row or in
loops, and what one sees decides what it does next. ``truth`` walks all interleavings of a model of
its own, which shares no code with the simulator and knows no rule about loops. ``explored`` traces
the kernel, and runs it on the simulator, in one order of each class.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from pallas_sim.errors import DeadlockError
from pallas_sim.exploration.explorer import Redundant
from pallas_sim.exploration.orders import ReducedOrder
from pallas_sim.exploration.reduction import Search
from pallas_sim.machine import Machine
from pallas_sim.simulation import SimulatedCall

#: An operation of a program: its kind, and the number of a variable.
type Small = tuple[str, int]

#: What each program of a grid does, in order.
type Grid = tuple[tuple[Small, ...], ...]

#: The first one is an array of its own; the others are elements of one.
VARIABLES = 3

#: Operations that compare and exchange, which the lowering has for an array of one element only.
COMPARES = ("claim", "lock", "test", "try")

#: Operations that change memory or look at it once or twice.
ONCE = ("add", "add", "fetch", "claim", "exchange", "look", "nothing", "twice", "in vain")

#: Operations whose loops look: see ``_STEPS``.
LOOPS = ("spin", "poll", "poll", "count", "collect", "lock", "test", "either", "both", "try")

#: How often loops that count look at most.
MOST = 2


def random_grid(seed: int) -> Grid:
    """Draw two or three programs; by brute force, those of three have many orders."""
    chance = Random(seed)
    lengths = chance.choice([(2, 2), (3, 2), (2, 1), (1, 1, 1), (2, 1, 1)])
    used = chance.choice((1, 2, 2, VARIABLES))

    def operation() -> Small:
        kind = chance.choice((*ONCE, *LOOPS))
        return kind, 0 if kind in COMPARES else chance.randrange(used)

    return tuple(tuple(operation() for _ in range(length)) for length in lengths)


# The truth: a model of each operation, one access to memory after the other.


#: What an operation has seen so far; None before its first step.
type _Local = Any

#: What an operation has given: what it saw, or None while it goes on; its state; and the variables.
type _After = tuple[int | None, _Local, tuple[int, ...]]


def _put(values: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _step(kind: str, number: int, me: int, local: _Local, memory: tuple[int, ...]) -> _After:
    """Return what the next access of an operation gives."""
    value, mine = memory[number], me + 1
    if kind == "add":
        return 0, None, _put(memory, number, value + mine)
    if kind == "fetch":
        return value % 2, None, _put(memory, number, value + mine)
    if kind == "claim":
        return value, None, _put(memory, number, value or mine)
    if kind == "exchange":
        return value, None, _put(memory, number, mine)
    if kind in ("look", "nothing"):
        return value, None, memory
    if kind in ("twice", "in vain"):
        return (None, (value,), memory) if local is None else (10 * local[0] + value, None, memory)
    if kind == "spin":
        return value or None, None, memory
    if kind in ("poll", "count", "collect"):
        looks, seen = local or (0, 0)
        looks, seen = looks + 1, seen + value
        done = looks > MOST if kind == "collect" else value or looks > MOST
        given = {"poll": value, "count": 10 * looks + value, "collect": seen}[kind]
        return (given, None, memory) if done else (None, (looks, seen), memory)
    if kind == "lock":
        return (mine, None, _put(memory, number, mine)) if not value else (None, None, memory)
    if kind == "test":  # looks until it is free, and then tries
        if local is None:
            return None, None if value else "free", memory
        return (mine, None, _put(memory, number, mine)) if not value else (None, None, memory)
    if kind == "either":
        turn = local or 0
        value = memory[(number + turn) % VARIABLES]
        return (10 * turn + value, None, memory) if value else (None, 1 - turn, memory)
    if kind == "both":
        if local is None:
            return None, (value,), memory
        other = memory[(number + 1) % VARIABLES]
        return (10 * local[0] + other, None, memory) if local[0] or other else (None, None, memory)
    assert kind == "try"  # tries to take it a few times
    tries = (local or 0) + 1
    if not value:
        return mine, None, _put(memory, number, mine)
    return (0, None, memory) if tries > MOST else (None, tries, memory)


#: A state: for each program the next operation, its state, and what was seen; and the variables.
type _State = tuple[tuple[tuple[int, _Local, tuple[int, ...]], ...], tuple[int, ...]]


def truth(grid: Grid) -> set[str]:
    """Return what the programs can end with."""
    first: _State = (((0, None, ()),) * len(grid), (0,) * VARIABLES)
    after: dict[_State, set[_State]] = {}
    left: list[_State] = [first]
    while left:
        state = left.pop()
        if state not in after:
            after[state] = set(_next_states(grid, state))
            left.extend(after[state])
    ends = {state for state, following in after.items() if not following}
    # From where no end is reached, somebody looks forever.
    before: dict[_State, set[_State]] = {}
    for state, following in after.items():
        for one in following:
            before.setdefault(one, set()).add(state)
    live, left = set(ends), list(ends)
    while left:
        fresh = [one for one in before.get(left.pop(), ()) if one not in live]
        live.update(fresh)
        left += fresh
    given = {_end([seen for _, _, seen in programs], memory) for programs, memory in ends}
    return given | ({"deadlock"} if len(live) < len(after) else set())


def _next_states(grid: Grid, state: _State) -> Iterator[_State]:
    programs, memory = state
    for me, (at, local, seen) in enumerate(programs):
        if at == len(grid[me]):
            continue
        value, local, now = _step(*grid[me][at], me, local, memory)
        if value is None:
            after = at, local, seen
        else:  # what is odd lets the next operation be left out
            skips = value % 2 == 1 and at + 1 < len(grid[me])
            after = at + 1 + skips, None, (*seen, value, *[-1] * skips)
        yield _put(programs, me, after), now


def _end(seen: Sequence[Sequence[int]], memory: Sequence[int]) -> str:
    return f"{[list(one) for one in seen]} {list(memory)}"


# The kernel.


def call_of(grid: Grid) -> Callable[..., Any]:
    """Return a call that gives the variables, and what each program has seen."""
    most = max(map(len, grid))

    def body(_one: Any, _others: Any, first: Any, others: Any, seen_ref: Any) -> None:
        variables, me = [(first, ()), (others, (0,)), (others, (1,))], pl.program_id(0)
        for number, operations in enumerate(grid):
            pl.when(me == number)(lambda n=number, o=operations: run(variables, seen_ref, n, o))

    def run(variables: Any, seen_ref: Any, me: int, operations: Sequence[Small]) -> None:
        seen: Any = 0
        for at, (kind, number) in enumerate(operations):
            operate = functools.partial(_operate, variables, kind, number, me)
            if isinstance(seen, int):
                seen = -1 if seen > 0 and seen % 2 else operate()
            else:  # the lowering has no constants as results of branches
                odd, zero = jax.lax.rem(seen, 2), seen - seen
                seen = jax.lax.cond(odd == 1, lambda: -odd, lambda: zero + operate())  # noqa: B023
            seen_ref[me, at] = seen

    return pl.pallas_call(
        body,
        out_shape=[
            jax.ShapeDtypeStruct((), jnp.int32),
            jax.ShapeDtypeStruct((VARIABLES - 1,), jnp.int32),
            jax.ShapeDtypeStruct((len(grid), most), jnp.int32),
        ],
        grid=(len(grid),),
        input_output_aliases={0: 0, 1: 1},
        name="programs",
    )


def _operate(variables: Any, kind: str, number: int, me: int) -> Any:
    """Let a program do an operation; return what it saw."""
    mine = me + 1
    ref, at = variables[number]

    def look(which: int = number) -> Any:
        other, where = variables[which % VARIABLES]
        return plt.load(other.at[where], volatile=True)

    def nothing() -> Any:
        return plt.atomic_add(ref, at, 0)

    def take() -> Any:
        return plt.atomic_cas(ref, 0, mine)

    if kind == "add":
        plt.atomic_add(ref, at, mine)
        return 0
    if kind == "fetch":
        return plt.atomic_add(ref, at, mine) % 2
    if kind == "exchange":
        return plt.atomic_xchg(ref, at, mine)
    if kind in ("claim", "look", "nothing"):
        return {"claim": take, "look": look, "nothing": nothing}[kind]()
    if kind in ("twice", "in vain"):
        first, second = ({"twice": look, "in vain": nothing}[kind]() for _ in range(2))
        return 10 * first + second
    loop = jax.lax.while_loop
    if kind == "spin":
        return loop(lambda value: value == 0, lambda _: look(), 0)
    if kind in ("poll", "count", "collect"):

        def again(state: Any) -> Any:
            looks, value, _ = state
            return (looks <= MOST) & ((kind == "collect") | (value == 0))

        def look_once(state: Any) -> Any:
            looks, _, seen = state
            value = look()
            return looks + 1, value, seen + value

        looks, value, seen = loop(again, look_once, (0, 0, 0))
        return {"poll": value, "count": 10 * looks + value, "collect": seen}[kind]
    if kind == "lock":
        loop(lambda held: held != 0, lambda _: take(), 1)
        return mine
    if kind == "test":

        def try_once(_: Any) -> Any:
            loop(lambda held: held != 0, lambda _: look(), 1)
            return take()

        loop(lambda held: held != 0, try_once, 1)
        return mine
    if kind == "either":

        def look_in_turn(state: Any) -> Any:
            turn, _ = state
            value = jax.lax.cond(turn == 0, look, lambda: look(number + 1))
            return 1 - turn, value

        turn, value = loop(lambda state: state[1] == 0, look_in_turn, (0, 0))
        return 10 * (1 - turn) + value
    if kind == "both":
        one, other = loop(
            lambda seen: (seen[0] == 0) & (seen[1] == 0),
            lambda _: (look(), look(number + 1)),
            (0, 0),
        )
        return 10 * one + other
    assert kind == "try"

    def try_again(state: Any) -> Any:
        tries, _ = state
        return tries + 1, take()

    _, held = loop(lambda state: (state[0] <= MOST) & (state[1] != 0), try_again, (0, 1))
    return mine * (held == 0).astype(jnp.int32)


def explored(grid: Grid) -> tuple[set[str], int]:
    """Return what the runs of an exploration end with, and their number."""
    call = SimulatedCall.of(call_of(grid), (np.int32(0), np.zeros(VARIABLES - 1, np.int32)), {})
    call.chip("h100")
    ends: set[str] = set()
    runs = Search()
    while runs.left:
        machine = Machine(target="h100")
        machine.monitored = False
        machine.choices = order = ReducedOrder(
            machine=machine, nodes=runs.nodes, impatient=runs.impatient
        )
        with contextlib.suppress(Redundant):
            ends.add(_run(call, grid, machine))
        order.end()
        runs.learn(order)
    return ends, runs.count


def _run(call: SimulatedCall, grid: Grid, machine: Machine) -> str:
    try:
        one, others, seen = map(np.asarray, call.run(machine, jit=True))
    except DeadlockError:
        return "deadlock"
    rows = [row[: len(one)] for row, one in zip(seen.tolist(), grid, strict=True)]
    return _end(rows, [one.item(), *others.tolist()])


def disagreement(seed: int) -> str:
    """Return how an exploration of a random kernel differs from the truth; "" if it does not."""
    return difference(random_grid(seed))


def difference(grid: Grid) -> str:
    """Return how an exploration differs from the truth; "" if it does not."""
    true, (ends, _) = truth(grid), explored(grid)
    missing, more = sorted(true - ends), sorted(ends - true)
    return "" if ends == true else f"{grid}: {missing} not found, {more} found"
