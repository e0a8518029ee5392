"""Rules: copies and semaphores, on this device or core and on others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from pallas_sim.accesses import (
    indexed_copy,
    is_indexed,
    move_block,
    read_window,
    report_input_write,
)
from pallas_sim.chips import padded_shape
from pallas_sim.compat.jaxprs import name_of_space
from pallas_sim.compat.places import CopyParts, copy_parts, semaphore_parts
from pallas_sim.compat.source import move_of_block
from pallas_sim.copies import advance, promise, signal, start, wait
from pallas_sim.cores import OF_THE_LAUNCH, barrier_of, peer_of, reach
from pallas_sim.counts import note_wait
from pallas_sim.dtypes import Array
from pallas_sim.edges import contents_of, read_inside, region_inside, report_edge, write_inside
from pallas_sim.errors import SimulationError
from pallas_sim.machine import Thread
from pallas_sim.memory import Outside, Ref
from pallas_sim.points import copy_slots, is_of_user, turn_site
from pallas_sim.recording import Copy, Semaphore
from pallas_sim.registry import Equation, Evaluate, rule
from pallas_sim.rules.references import adding
from pallas_sim.transforms import Operand, RefPart
from pallas_sim.windows import (
    fixed_size,
    is_view,
    packed_bytes,
    reading,
    region_of,
    size_in_bytes,
)


@rule("dma_start", threaded=True)
def _dma_start(eqn: Equation) -> Evaluate:
    named = copy_parts(eqn.params, len(eqn.ins))
    line, adds = eqn.line, eqn.params["add"]
    bound = None if named.chooses else _bound(named, eqn.ins)
    move = move_of_block(eqn.origin)
    slots = None if named.chooses else copy_slots(eqn, named.source, named.target, named.done)

    def evaluate(thread: Thread, *operands: Any) -> Any:
        parts, indexed, from_part, to_part, sent_part, done_part = bound or _bound(
            _chosen(named, operands), eqn.ins
        )
        if indexed:
            _start_indexed(thread, eqn, parts, operands, move)
            return ()
        from_: Ref = operands[parts.source.position]
        source, inside = _accessed(thread, parts.source, from_part, operands, "copy from", line)
        to: Ref = operands[parts.target.position]
        if not source.size:
            return ()
        _note_target(thread, from_, to, move, line)
        peer = peer_of(thread, parts.peer, operands)
        _accessed(thread, parts.target, to_part, operands, "copy to", line)
        copy = Copy(
            source=source,
            target=None,
            names=(from_.name, to.name),
            size=packed_bytes(source.size, source.dtype),
            sent=_semaphore(thread, parts.sent, sent_part, operands, line),
            done=None,
            line=line,
            home=thread.owner.device if peer is None else peer.device,
            adds=adds,
        )

        contents = contents_of(thread)
        if not inside:
            window = parts.source.transforms
            copy.read = lambda: np.array(read_inside(from_.data, window, operands, contents))
            copy.source = region_inside(from_.data, window, operands)
        elif not is_view(source, from_.data):
            copy.read = lambda: np.array(from_part(from_.data, operands))
            copy.source = region_of(from_.data, parts.source.transforms, operands, source)

        def aim(memory: Array) -> None:
            """Let the copy write to a part of a memory, as far as that is there."""
            window = parts.target.transforms
            try:
                target = to_part(memory, operands)
            except Outside:
                copy.target, copy.whole, copy.write = (
                    region_inside(memory, window, operands),
                    True,
                    put(memory),
                )
                return
            direct = is_view(target, memory)
            copy.target = target if direct else region_of(memory, window, operands, target)
            straight = not adds and source.shape == target.shape and direct
            # A view is memory itself, so chunks of it can be copied.
            copy.whole = not straight or copy.read is not None
            if not straight:
                copy.write = put(memory)

        def put(memory: Array) -> Callable[[Any], None]:
            def write_it(values: Any) -> None:
                change = adding(to.dtype, values) if adds else lambda _: values
                write_inside(memory, parts.target.transforms, operands, change, contents)

            return write_it

        if peer is None:
            aim(to.data)
            copy.done = _semaphore(thread, parts.done, done_part, operands, line)
            if slots is not None:
                thread.machine.coverage.use(slots, thread.kernel, operands, copy.done)
            start(thread, copy)
            return ()

        def arrive(memory: Ref) -> None:
            aim(memory.data)

        def count(memory: Ref) -> None:
            copy.done = _one(thread, memory, done_part, operands, line)
            if copy.begun and copy.done is not None:
                promise(thread.machine, copy.done, copy)

        if slots is not None:
            done = copy.sent
            thread.machine.coverage.use(slots, thread.kernel, operands, done, remote=True)
        reach(thread, peer, to, line, arrive, how="copies to")
        if parts.done is not None:
            reach(thread, peer, operands[parts.done.position], line, count)
        start(thread, copy)
        return ()

    return evaluate


def _start_indexed(
    thread: Thread,
    eqn: Equation,
    parts: CopyParts,
    operands: Sequence[Any],
    move: Literal["fetch", "write back"] | None,
) -> None:
    """Begin a copy whose rows a list of indices names."""
    to: Ref = operands[parts.target.position]
    if peer_of(thread, parts.peer, operands) is not None:
        raise SimulationError(
            "a copy with a list of indices cannot go to another device or core: only to memory "
            "that the subcore itself reaches"
        )
    _note_target(thread, operands[parts.source.position], to, move, eqn.line)
    adds = eqn.params["add"]
    copy = indexed_copy(thread, parts, eqn.ins, operands, eqn.line, adds=adds)
    if copy.size:
        copy.sent = _semaphore(thread, parts.sent, _reader(parts.sent), operands, eqn.line)
        copy.done = _semaphore(thread, parts.done, _reader(parts.done), operands, eqn.line)
        start(thread, copy)


def _note_target(
    thread: Thread, source: Ref, target: Ref, move: Literal["fetch", "write back"] | None, line: str
) -> None:
    """Report a copy of the user to the window of an input, and note one of a pipeline."""
    if move is None:
        report_input_write(thread, target, line)
    elif move == "fetch":
        move_block(target, source.name, move)
    else:
        move_block(source, target.name, move)


@rule("dma_wait", threaded=True)
def _dma_wait(eqn: Equation) -> Evaluate:
    named = copy_parts(eqn.params, len(eqn.ins))
    line, target, of_done, counts = eqn.line, named.target, _reader(named.done), is_of_user(eqn)
    # The descriptor of a wait says how many bytes, and accesses nothing.
    fixed = None if named.chooses else fixed_size(eqn.ins[target.position], target.transforms)

    def evaluate(thread: Thread, *operands: Any) -> Any:
        parts, reader, size = named, of_done, fixed
        if named.chooses:
            parts = _chosen(named, operands)
            reader = _reader(parts.done)
        semaphore = _semaphore(thread, parts.done, reader, operands, line)
        if size is None:
            ref: Ref = operands[parts.target.position]
            size = size_in_bytes(ref, parts.target.transforms, operands)
        if semaphore is not None and size:
            if counts:
                note_wait(thread, semaphore.name, line, blocked=semaphore.count < size)
            wait(thread, semaphore, size, line)
            thread.machine.coverage.close(semaphore)
        return ()

    return evaluate


@rule("semaphore_signal", threaded=True)
def _signal(eqn: Equation) -> Evaluate:
    parts = semaphore_parts(eqn.name, eqn.params, len(eqn.ins))
    position, line = parts.value, eqn.line
    reader = _reader(parts.semaphore)
    assert position is not None

    def evaluate(thread: Thread, *operands: Any) -> Any:
        def act(memory: Ref) -> None:
            semaphore = _one(thread, memory, reader, operands, line)
            if semaphore is not None:
                signal(thread, semaphore, int(operands[position]), line)

        own, peer = operands[parts.semaphore.position], peer_of(thread, parts.peer, operands)
        if peer is None:
            act(own)
        else:
            reach(thread, peer, own, line, act)
        return ()

    return evaluate


@rule("semaphore_wait", threaded=True)
def _wait(eqn: Equation) -> Evaluate:
    parts = semaphore_parts(eqn.name, eqn.params, len(eqn.ins))
    value, decrement, line = parts.value, parts.decrement, eqn.line
    assert value is not None
    assert decrement is not None
    semaphore_of, turns = _named(parts.semaphore), turn_site(eqn, parts.semaphore)

    def evaluate(thread: Thread, *operands: Any) -> Any:
        semaphore = semaphore_of(thread, operands, line)
        if semaphore is not None:
            amount = int(operands[value])
            if turns is not None:
                thread.machine.coverage.turn(turns, thread, operands)
            note_wait(thread, semaphore.name, line, blocked=semaphore.count < amount)
            wait(thread, semaphore, amount, line, decrement=bool(operands[decrement]))
            thread.machine.coverage.close(semaphore)
        return ()

    return evaluate


@rule("semaphore_read", threaded=True)
def _read(eqn: Equation) -> Evaluate:
    parts = semaphore_parts(eqn.name, eqn.params, len(eqn.ins))
    semaphore_of = _named(parts.semaphore)

    def evaluate(thread: Thread, *operands: Any) -> Any:
        semaphore = semaphore_of(thread, operands, eqn.line)
        if semaphore is None:
            return thread.machine.uninitialized((), np.int32, "padding")[()]
        semaphore.looked = True
        # A loop that reads until others have signalled must let them, and copies too.
        machine = thread.machine
        machine.scheduler.give_way(semaphore)
        machine.choices.look(thread, "look", semaphore, eqn.line)
        count = np.int32(semaphore.count)
        if machine.choices.explores and machine.scheduler.current is not None:
            return count
        if copy := next((pending for pending in semaphore.coming if pending.movable), None):
            advance(machine, copy)
        return count

    return evaluate


@rule("get_barrier_semaphore", threaded=True)
def _barrier_semaphore(eqn: Equation) -> Evaluate:
    del eqn  # its tag is in the name that ``traffic_of`` gives the semaphore

    def evaluate(thread: Thread) -> Any:
        name = thread.launch if thread.collective == OF_THE_LAUNCH else thread.collective
        return barrier_of(thread, thread.owner.device, name)

    return evaluate


#: Gives a part of a memory, for the operands of an equation.
_Reader = Callable[[Array, Sequence[Any]], Any]


def _bound(
    parts: CopyParts, avals: Sequence[Any]
) -> tuple[CopyParts, bool, _Reader, _Reader, _Reader, _Reader]:
    """Return what is known of a copy before it is evaluated, and how its parts are read."""
    places = (parts.source, parts.target, parts.sent, parts.done)
    source, target, sent, done = map(_reader, places)
    return parts, is_indexed(parts, avals), source, target, sent, done


def _reader(part: RefPart | None) -> _Reader:
    return reading(() if part is None else part.transforms)


def _chosen(parts: CopyParts, operands: Sequence[Any]) -> CopyParts:
    """Return the parts of a copy, where an index chooses between references."""
    named = ((name, getattr(parts, name)) for name in ("source", "target", "done", "sent"))
    return replace(parts, **{name: _choice(part, operands) for name, part in named if part})


def _choice(part: RefPart, operands: Sequence[Any]) -> RefPart:
    if not part.choices:
        return part
    index = part.chosen
    index = int(operands[index.position]) if isinstance(index, Operand) else index
    if not 0 <= index < len(part.choices):
        raise SimulationError(
            f"select_ref has {len(part.choices)} references, and its index is {index}"
        )
    return _choice(part.choices[index], operands)


def _accessed(
    thread: Thread, part: RefPart, reader: _Reader, operands: Sequence[Any], how: str, line: str
) -> tuple[Any, bool]:
    """Return the elements of one side of a copy, and whether all are there.

    A copy beyond an edge is reported, but for one that ends in the padding of the last tile, as
    copies of JAX's ``emit_pipeline`` do: a copy is of whole tiles, and that padding is nobody's.
    """
    ref: Ref = operands[part.position]
    try:
        return reader(ref.data, operands), True
    except Outside:
        if _ends_in_padding(ref, reader, operands):
            return read_inside(ref.data, part.transforms, operands, contents_of(thread)), False
        return read_window(thread, ref, part.transforms, operands, how, line), False


def _ends_in_padding(ref: Ref, reader: _Reader, operands: Sequence[Any]) -> bool:
    """Return whether a window is within an array and the padding of its last tiles."""
    if ref.space == "smem" or not ref.data.ndim:
        return False
    shape = padded_shape(ref.data.shape, ref.data.dtype)
    tiles = np.broadcast_to(np.empty((), ref.data.dtype), shape)  # takes no memory
    try:
        reader(tiles, operands)
    except (Outside, IndexError, ValueError):  # or the array is reshaped before
        return False
    return True


def _semaphore(
    thread: Thread, part: RefPart | None, reader: _Reader, operands: Sequence[Any], line: str
) -> Semaphore | None:
    return None if part is None else _one(thread, operands[part.position], reader, operands, line)


def _named(part: RefPart) -> Callable[[Thread, Sequence[Any], str], Semaphore | None]:
    """Gives the semaphore at a place, for the operands of an equation and its line."""
    reader = _reader(part)
    return lambda thread, operands, line: _one(
        thread, operands[part.position], reader, operands, line
    )


def _one(
    thread: Thread, ref: Ref, reader: _Reader, operands: Sequence[Any], line: str
) -> Semaphore | None:
    """Return a semaphore; None, and a finding, if the index is beyond the edge."""
    try:
        element = reader(ref.data, operands)
    except Outside as outside:
        report_edge(thread, ref, "use of", outside, line)
        return None
    return element if type(element) is Semaphore else element.item()


@rule("has_memory_space")
def _has_memory_space(eqn: Equation) -> Evaluate:
    space = name_of_space(eqn.params["memory_space"])
    return lambda ref: np.bool_(ref.space == space)
