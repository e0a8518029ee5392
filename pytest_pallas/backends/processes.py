"""The processes of one JAX program (a gang), and what they agree on before they go on together.

Processes of one program must make the same calls in the same order: a collective that one of them
does not reach blocks the others. So before each such call, and after each judgement, every process
states what it does and how it went, in the store of JAX's coordination service. All read all
statements, and all come to the same conclusion.

``gang`` says which processes there are, ``agree`` makes a statement and reads those of all.
"""

from __future__ import annotations

import functools
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pallas_sim.findings import Text
from pytest_pallas.compat import distributed
from pytest_pallas.compat.distributed import DistributedProgram, distributed_program
from pytest_pallas.decoding import AsWritten, DataError, Exact, decode, json_of, parse
from pytest_pallas.errors import GangError, PeerError, facts_of

#: Seconds between two looks at the store: the first, and the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05

_ROOT = "pytest-pallas/statements"


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What a process states.

    Attributes:
      process: its number.
      host: the name of its host.
      step: what it is about to do, or has done, such as ``"run"``.
      subject: of what, such as the name and the arguments of a call; all processes must have the
        same.
      problem: what went wrong in this process; "" if nothing did.
      kernel_raised: whether that is an error of a kernel that raised.
      value: what it wants the others to know, as JSON.
    """

    process: int
    host: str
    step: str
    subject: Exact = ""
    problem: Text = ""
    kernel_raised: bool = False
    value: Annotated[Any, AsWritten()] = None


@dataclass(frozen=True)
class Gang:
    """The processes of the program.

    Attributes:
      process: the number of this process.
      count: how many there are.
      host: the name of this host.
    """

    process: int
    count: int
    host: str


def gang() -> Gang | None:
    """Return the processes of the program that this one is part of; None if it is on its own."""
    program = distributed_program()
    if program is None:
        return None
    return Gang(program.process, program.processes, socket.gethostname())


def process_arguments() -> list[str]:
    """Return the arguments by which one machine repeats what the processes of this program run."""
    processes = gang()
    return [] if processes is None else [f"--pallas-processes={processes.count}"]


@dataclass
class _Position:
    """How far this process is in what all of them do.

    Attributes:
      scope: the name of the current test.
      number: the number of the next statement in it.
      begun: how many tests have begun.
      ended: whether this process has said that the test ended.
    """

    scope: str = "start"
    number: int = 0
    begun: int = 0
    ended: bool = False


@functools.cache
def _position() -> _Position:
    """That of this process: ``jax.distributed`` has one state, too, and sessions go on in it."""
    return _Position()


def begin_scope(name: str) -> None:
    """Begin a test: statements count from 0 again, so that no earlier difference matters.

    Args:
      name: of the test, the same in all processes, which begin the same tests in the same order.
    """
    position = _position()
    position.begun += 1
    position.ended = False
    position.scope, position.number = f"{position.begun}|{name.replace('/', '|')}", 0


def end_scope(problem: str = "") -> None:
    """Say that this process has ended the test, with ``problem`` if it failed; the first time only.

    Processes that still wait for a statement of this one fail at once.
    """
    program, position = distributed_program(), _position()
    if program is None or position.ended:
        return
    position.ended = True
    statement = _statement(program, "end", subject="the test", problem=problem)
    distributed.put(program, f"{_folder('ended')}/{program.process}", json_of(statement).decode())


def agree(step: str, *, problem: str = "", timeout: float, **fields: Any) -> Sequence[Statement]:
    """State something, and return the statements of all processes, in their order.

    Outside of a gang it returns the one statement. A process that has a problem of its own gets no
    error here; it raises that problem itself.

    Args:
      step: see ``Statement``.
      problem: likewise.
      timeout: seconds to wait for the others.
      **fields: ``subject``, ``kernel_raised`` and ``value`` of the ``Statement``.

    Raises:
      PeerError: another process has a problem, and this one has none.
      GangError: the processes do different things, or one of them did not come in time.
    """
    program = distributed_program()
    own = _statement(program, step, problem=problem, **fields)
    if program is None:
        return (own,)
    __tracebackhide__ = True
    position = _position()
    folder = _folder(str(position.number))
    distributed.put(program, f"{folder}/{program.process}", json_of(own).decode())
    statements = _wait_for_all(program, folder, own, timeout)
    if position.number >= 2:  # whoever states number n has read all statements n-1
        distributed.delete(program, f"{_folder(str(position.number - 2))}/{program.process}")
    position.number += 1
    if not problem:
        _raise_problems(statements, step)
        _raise_differences(statements)
    return statements


def _wait_for_all(
    program: DistributedProgram, folder: str, own: Statement, timeout: float
) -> Sequence[Statement]:
    __tracebackhide__ = True
    until = time.monotonic() + timeout
    pause = _FIRST_PAUSE
    while True:
        # In this order: a process that has ended the test made its statements before.
        ended = distributed.read_folder(program, _folder("ended"))
        stated = distributed.read_folder(program, folder)
        if len(stated) == program.processes:
            return [_of(stated[str(number)]) for number in range(program.processes)]
        gone = [_of(text) for number, text in ended.items() if number not in stated]
        if gone and own.problem:
            return [own]
        if gone:
            _raise_problems(gone, own.step)
            _raise_differences([own, *gone])
        if time.monotonic() > until:
            if own.problem:
                return [own]
            missing = [n for n in range(program.processes) if str(n) not in stated]
            raise GangError(
                f"{_processes(missing)} did not come to the step `{own.step}` "
                f"{own.subject and f'of {own.subject} '}within {timeout:g} s, where process "
                f"{program.process} waits. All processes must make the same calls in the same "
                "order; if one is only slow, raise --pallas-timeout."
            )
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _raise_problems(statements: Sequence[Statement], step: str) -> None:
    __tracebackhide__ = True
    failed = [statement for statement in statements if statement.problem]
    if not failed:
        return
    first, numbers = failed[0], tuple(statement.process for statement in failed)
    error = PeerError(
        f"{_processes(numbers)} failed, so this process stops here, too. "
        f"Process {first.process} ({first.host}): {first.problem}"
    )
    error.processes = numbers
    error.kernel_raised = first.kernel_raised
    error.gone = any(statement.step != step for statement in failed)
    error.step, facts_of(error).shared = first.step, not error.gone
    raise error


def _raise_differences(statements: Sequence[Statement]) -> None:
    __tracebackhide__ = True
    if len({(statement.step, statement.subject) for statement in statements}) < 2:
        return
    steps = "; ".join(
        f"process {one.process}: {one.step}{one.subject and ' of '}{one.subject}"
        for one in statements
    )
    raise GangError(
        "the processes of the program do different things, which would block them in a "
        f"collective: {steps}. Every process must draw the same arguments and make the same calls; "
        "what depends on jax.process_index(), the time or the host must not decide which."
    )


def _processes(numbers: Sequence[int]) -> str:
    return f"process{'es' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _folder(name: str) -> str:
    return f"{_ROOT}/{_position().scope}/{name}"


def _statement(program: DistributedProgram | None, step: str, **fields: Any) -> Statement:
    process = 0 if program is None else program.process
    return Statement(process=process, host=socket.gethostname(), step=step, **fields)


def _of(text: str) -> Statement:
    try:
        return decode(Statement, parse(text))
    except DataError as error:
        raise GangError(f"a process of the program stated what cannot be read: {error}") from None
