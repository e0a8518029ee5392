"""The judge's side of the process that traces a candidate: start it, ask, limit and end it."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import math
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_pallas.candidates.codec import ProgramData
from pytest_pallas.candidates.jail import SandboxLimits
from pytest_pallas.candidates.program_reader import decode
from pytest_pallas.errors import ProgramError
from pytest_pallas.workers.process import family_of, resident_bytes

_SIZES = struct.Struct("<IQ")

#: Most bytes of the files of a candidate.
MOST_SOURCE = 1 << 20

#: Bytes at the end of what a candidate prints that are kept.
_KEPT = 8192

#: Seconds between two looks at memory and processes.
_LOOK = 0.05

#: Most processes of a candidate, with the two that are the sandbox's.
_MOST_PROCESSES = 18

_BOOTSTRAP = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from pytest_pallas.candidates.child import serve; serve(int(sys.argv[2]))"
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A call that a candidate is traced for.

    Attributes:
      args: shape and dtype of each positional argument.
      options: keyword arguments, of numbers, texts and None.
      gradient: positions to differentiate by; () for the call itself.
    """

    args: tuple[tuple[tuple[int, ...], str], ...]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    gradient: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Failed:
    """Why a candidate gave no program.

    Attributes:
      stage: ``"imports"`` or ``"traces"``.
      name: what happened, in a word or two: ``"timed out"``, ``"callback"``.
      sentence: for a reader.
      line: ``file:line`` of the candidate, or "".
      case: the number of the call; -1 if it is none.
      type: the type of the candidate's error, or "".
    """

    stage: str
    name: str
    sentence: str
    line: str = ""
    case: int = -1
    type: str = ""


@dataclass(frozen=True, kw_only=True)
class Traced:
    """What came of a candidate.

    Attributes:
      programs: of the calls, by their numbers.
      again: digests of the programs of calls that were traced a second time.
      refused: why calls have no program, by their numbers.
      imported: whether its module could be imported.
      failed: why it gave no more programs, or None.
      in_force: what the sandbox took away.
      output: the end of what it printed.
      seconds: how long it took.
    """

    programs: Mapping[int, ProgramData]
    again: Mapping[int, str]
    refused: Mapping[int, Failed]
    imported: bool
    failed: Failed | None
    in_force: tuple[str, ...]
    output: str
    seconds: float


class Sandbox:
    """A process that has imported JAX, and forks for each candidate.

    One thread uses it. ``with Sandbox() as sandbox`` ends it.

    Attributes:
      limits: of a candidate that has none of its own.
      separate: whether candidates get namespaces, where the system allows them.
      process: the process, or None before the first candidate.
    """

    def __init__(self, limits: SandboxLimits | None = None, *, separate: bool = True) -> None:
        """Start nothing yet.

        Args:
          limits: of each candidate.
          separate: False to do without namespaces, as systems do that do not allow them.
        """
        self.limits = limits or SandboxLimits()
        self.separate = separate
        self.process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        if self._channel is not None:
            self._channel.close()
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(2)
            self.process.kill()
            self.process.wait()
        self._channel = self.process = None

    def start(self) -> socket.socket:
        """Start the process, unless it runs; return the socket to it.

        Raises:
          OSError: it does not start.
        """
        if self.process is not None and self.process.poll() is not None:
            self.close()
        if self._channel is None:
            ours, theirs = socket.socketpair()
            path = [os.path.abspath(entry) if entry else os.getcwd() for entry in sys.path]
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-c", _BOOTSTRAP, json.dumps(path), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                cwd="/",
                env={
                    "JAX_PLATFORMS": "cpu",
                    "PATH": "/usr/bin:/bin",
                    "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
                },
            )
            theirs.close()
            if ours.recv(1) != b"+":
                self.close()
                raise OSError("the process that traces candidates does not start")
            self._channel = ours
        return self._channel

    def trace(
        self,
        files: Mapping[str, str],
        module: str,
        function: str,
        cases: Sequence[Case],
        *,
        target: str,
        again: Sequence[int] = (),
        package: str = "",
        folder: str = "",
        limits: SandboxLimits | None = None,
    ) -> Traced:
        """Return the programs of a candidate's calls.

        Args:
          files: text of each of its files, by relative paths.
          module: which of them is imported.
          function: the name of the kernel in it.
          cases: the calls.
          target: name of the chip to trace for.
          again: numbers of calls to trace a second time, after all others.
          package: what relative imports of the module start from; "" if it is in none.
          folder: where the files are, for lines in messages.
          limits: of this candidate; by default those of all.
        """
        limits = limits or self.limits
        begun = time.monotonic()
        if sum(map(len, files.values())) > MOST_SOURCE:
            sentence = f"its files have more than {MOST_SOURCE >> 20} MiB"
            failed = Failed(stage="imports", name="too large", sentence=sentence)
            return Traced(
                programs={},
                again={},
                refused={},
                imported=False,
                failed=failed,
                in_force=(),
                output="",
                seconds=0.0,
            )
        job = {
            "files": files,
            "module": module,
            "package": package,
            "function": function,
            "target": target,
            "cases": [dataclasses.asdict(case) for case in cases],
            "order": [*range(len(cases)), *again],
            "limits": dataclasses.asdict(limits),
            "separate": self.separate,
        }
        run = _Watch(limits)
        status = self._run(json.dumps(job).encode(errors="surrogateescape"), run)
        return _traced(run, status, folder, time.monotonic() - begun)

    def _run(self, job: bytes, run: _Watch) -> int:
        """Hand over a job and watch it; return the status of its process."""
        channel = self.start()
        answers, theirs = os.pipe()
        output, printed = os.pipe()
        try:
            socket.send_fds(channel, [struct.pack("<Q", len(job))], [theirs, printed])
            os.close(theirs)
            os.close(printed)
            theirs = printed = -1
            channel.sendall(job)
            (pid,) = struct.unpack("<I", channel.recv(4, socket.MSG_WAITALL))
            run.watch(pid, answers, output)
            run.drain(output)
            channel.sendall(b".")
            return struct.unpack("<i", channel.recv(4, socket.MSG_WAITALL))[0]
        except (OSError, struct.error):
            self.close()
            run.ending = run.ending or ("crashed", "it ended the process that started it")
            return 0
        except BaseException:  # an interrupt: what the process says next is of this candidate
            self.close()
            raise
        finally:
            for descriptor in (answers, output, theirs, printed):
                if descriptor != -1:
                    os.close(descriptor)


class _WarmSandbox(threading.local):
    """The sandbox that a thread keeps, and the process that started it."""

    def __init__(self) -> None:
        self.pid = 0
        self.sandbox: Sandbox | None = None


_WARM = _WarmSandbox()


def warm_sandbox() -> Sandbox:
    """Return the sandbox of this thread, which is kept: its start takes longer than a candidate.

    Its process ends with this one, whose end of the socket it waits for if this one is killed.
    """
    if _WARM.sandbox is None or _WARM.pid != os.getpid():
        _WARM.pid, _WARM.sandbox = os.getpid(), Sandbox()
        atexit.register(_close_own, _WARM.sandbox, _WARM.pid)
    return _WARM.sandbox


def _close_own(sandbox: Sandbox, pid: int) -> None:
    """Close a sandbox in the process that started it, and in none that was forked."""
    if os.getpid() == pid:
        sandbox.close()


class _Watch:
    """The watch over one candidate.

    Attributes:
      messages: what it has answered: facts, and bytes.
      ending: name and sentence of what ended it, if the judge did.
    """

    def __init__(self, limits: SandboxLimits) -> None:
        self.limits = limits
        self.messages: list[tuple[dict[str, Any], bytes]] = []
        self.ending: tuple[str, str] | None = None
        self.output = b""
        self._printed = 0
        self._answered = 0
        self._received = bytearray()

    def watch(self, pid: int, answers: int, output: int) -> None:
        """Read until the candidate has answered all, ends, or uses more than it may."""
        limits = self.limits
        os.set_blocking(answers, False)
        os.set_blocking(output, False)
        deadline = time.monotonic() + limits.seconds
        poll = select.poll()
        poll.register(answers, select.POLLIN)
        poll.register(output, select.POLLIN)
        look = time.monotonic() + _LOOK
        while self.ending is None:
            now = time.monotonic()
            if now >= deadline:
                self.ending = "timed out", f"it did not end in {limits.seconds:.3g} s"
                return
            if now >= look:
                look = now + _LOOK
                self._look(pid)
            ready = poll.poll(math.ceil((min(look, deadline) - now) * 1000))
            for descriptor, _ in ready:
                data = _read(descriptor)
                if data is None:
                    continue
                if not data:
                    poll.unregister(descriptor)
                    if descriptor == answers:
                        return
                elif descriptor == output:
                    self._print(data)
                elif self._answer(data):
                    return

    def drain(self, output: int) -> None:
        """Read what is printed and not yet read."""
        while (data := _read(output)) and self.ending is None:
            self._print(data)

    def _look(self, pid: int) -> None:
        """End a candidate that uses more than it may."""
        limits = self.limits
        if sum(1 for _ in family_of(pid)) > _MOST_PROCESSES:
            self.ending = "forks", f"it started more than {_MOST_PROCESSES - 2} processes"
        elif resident_bytes(pid) > limits.memory:
            self.ending = "out of memory", f"it used more than {limits.memory >> 20} MiB of memory"

    def _print(self, data: bytes) -> None:
        self._printed += len(data)
        self.output = (self.output + data)[-_KEPT:]
        if self._printed > self.limits.output:
            most = self.limits.output >> 20
            self.ending = "too much output", f"it printed more than {most} MiB"

    def _answer(self, data: bytes) -> bool:
        """Add to the answers; return whether the last one is there."""
        self._answered += len(data)
        if self._answered > self.limits.answer:
            self.ending = "too large", "its programs are too large"
            return True
        self._received += data
        while len(self._received) >= _SIZES.size:
            header, body = _SIZES.unpack_from(self._received)
            if header > 1 << 16 or body > self.limits.answer:
                self.ending = "no answer", "it answered in a way that is none of the sandbox"
                return True
            end = _SIZES.size + header + body
            if len(self._received) < end:
                return False
            part = bytes(self._received[_SIZES.size : end])
            del self._received[:end]
            try:
                facts = json.loads(part[:header])
                kind = facts["kind"]
            except (ValueError, TypeError, KeyError, RecursionError):
                self.ending = "no answer", "it answered in a way that is none of the sandbox"
                return True
            self.messages.append((facts, part[header:]))
            if kind in ("end", "error"):
                return True
        return False


def _read(descriptor: int) -> bytes | None:
    try:
        return os.read(descriptor, 1 << 20)
    except BlockingIOError:
        return None


def _traced(run: _Watch, status: int, folder: str, seconds: float) -> Traced:
    """Return what the answers of a candidate say."""
    programs: dict[int, ProgramData] = {}
    again: dict[int, str] = {}
    refused: dict[int, Failed] = {}
    in_force: tuple[str, ...] = ()
    imported, failed, ended = False, None, False
    for number, (facts, body) in enumerate(run.messages):
        kind = facts["kind"]
        if kind == "sandbox" and number == 0:
            in_force = tuple(map(str, facts["in_force"]))
        elif kind == "imported":
            imported = True
        elif kind == "end":
            ended = True
        elif kind == "program":
            case = facts.get("case")
            try:
                program = decode(body, folder)
            except ProgramError as error:
                failed = Failed(stage="traces", name="no program", sentence=str(error))
                break
            if isinstance(case, int):
                if case in programs:
                    again[case] = program.digest
                programs.setdefault(case, program)
        elif kind == "refused":
            problem = _failed(facts, imported)
            if problem.case in programs or problem.case in refused:
                again[problem.case] = problem.sentence
            refused.setdefault(problem.case, problem)
        elif kind == "error":
            failed = _failed(facts, imported)
    stage = "traces" if imported else "imports"
    if failed is None and run.ending is not None:
        failed = Failed(stage=stage, name=run.ending[0], sentence=run.ending[1])
    elif failed is None and not ended:
        failed = Failed(stage=stage, name=_fate(status)[0], sentence=_fate(status)[1])
    return Traced(
        programs=programs,
        again=again,
        refused=refused,
        imported=imported,
        failed=failed,
        in_force=in_force,
        output=run.output.decode(errors="replace"),
        seconds=seconds,
    )


def _failed(facts: Mapping[str, Any], imported: bool) -> Failed:
    texts = {key: str(facts.get(key, "")) for key in ("type", "message", "name", "line")}
    kind = texts["type"]
    name = {"ProgramError": texts["name"] or "no program"}.get(kind, kind)
    first = texts["message"].strip().partition("\n")[0]
    sentence = first if kind == "ProgramError" else f"{kind}: {first}"
    case = facts.get("case")
    return Failed(
        stage="traces" if imported else "imports",
        name=name,
        sentence=sentence,
        line=texts["line"],
        case=case if isinstance(case, int) else -1,
        type=kind,
    )


def _fate(status: int) -> tuple[str, str]:
    """Return name and sentence of how a candidate ended by itself."""
    code = os.waitstatus_to_exitcode(status)
    if code > 128:
        number = code - 128
        names = {signal.SIGXCPU: "timed out", signal.SIGXFSZ: "files"}
        kind = signal.Signals(number) if number in set(signal.Signals) else None
        text = kind.name if kind else f"signal {number}"
        return names.get(kind, "crashed") if kind else "crashed", f"it died of {text}"
    return "ended early", f"its process ended with status {code} before it had answered"
