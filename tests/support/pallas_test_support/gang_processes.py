"""Start a program of several JAX processes, and run functions of a test in all of them at once.

    with processes(2, devices=2) as program:
        answers = program.call("gang_cases.py", "psum")

Each process has CPU devices with gloo collectives. A function returns JSON; what it raises comes
back as its type and message.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pallas_test_support.pinned_xla import pinned

ROOT = Path(__file__).parents[3]

#: How often a start is tried: between the choice of a port and its use, another may take it.
STARTS = 3


@dataclass(frozen=True)
class Answer:
    """What a function returned in one process, or what it raised there."""

    process: int
    value: Any = None
    error: str = ""
    message: str = ""
    shared: bool = False

    def unwrap(self) -> Any:
        assert not self.error, f"process {self.process}: {self.error}: {self.message}"
        return self.value


class Worker:
    """One process."""

    def __init__(self, number: int, count: int, devices: int, port: int) -> None:
        self.number = number
        words = [sys.executable, __file__, *map(str, (number, count, devices, port))]
        environ = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(devices),
            "XLA_FLAGS": pinned(),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parents[1])]),
        }
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environ,
        )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ANSWER "):
                self.lines.put(line.removeprefix("ANSWER "))
        self.lines.put("")

    def ask(self, **command: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def answer(self, timeout: float) -> Answer:
        try:
            line = self.lines.get(timeout=timeout)
        except queue.Empty:
            return Answer(self.number, error="TimeoutError", message=f"no answer in {timeout} s")
        if not line:
            return Answer(self.number, error="EOFError", message="the process ended")
        return Answer(**json.loads(line))


class Program:
    """The processes of a program."""

    def __init__(self, workers: list[Worker]) -> None:
        self.workers = workers
        self._calls = 0

    def call(
        self, file: str | Path, function: str, *args: Any, timeout: float = 180
    ) -> list[Answer]:
        """Call a function of a file of tests/support, or of a path, in every process.

        The first call imports everything, which takes long where many cores are busy.
        """
        self._calls += 1
        path = Path(__file__).parent / file
        for worker in self.workers:
            worker.ask(file=str(path), function=function, args=args, scope=f"call {self._calls}")
        return [worker.answer(timeout) for worker in self.workers]

    def values(
        self, file: str | Path, function: str, *args: Any, timeout: float = 180
    ) -> list[Any]:
        """As ``call``, where none may raise."""
        return [answer.unwrap() for answer in self.call(file, function, *args, timeout=timeout)]


@contextlib.contextmanager
def processes(count: int, *, devices: int) -> Generator[Program]:
    """A program of ``count`` processes with ``devices`` CPU devices each."""
    workers = _start(count, devices)
    try:
        yield Program(workers)
    finally:
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.wait()
            for stream in (worker.process.stdin, worker.process.stdout):
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def _start(count: int, devices: int) -> list[Worker]:
    for _ in range(STARTS):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        workers = [Worker(number, count, devices, port) for number in range(count)]
        ready = [worker.answer(180) for worker in workers]
        if all(answer.value == "ready" for answer in ready):
            return workers
        for worker in workers:
            worker.process.kill()
    raise RuntimeError(f"{count} processes did not start: {ready}")


def _work(number: int, count: int, devices: int, port: int) -> None:
    """What a process does."""
    import importlib.util
    import traceback

    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_num_cpu_devices", devices)
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=count, process_id=number)
    from pytest_pallas.backends.processes import begin_scope
    from pytest_pallas.errors import facts_of

    jax.devices()  # waits for the others
    _answer(process=number, value="ready")
    modules: dict[str, Any] = {}
    for line in sys.stdin:
        command = json.loads(line)
        begin_scope(command["scope"])
        try:
            if command["file"] not in modules:
                name = Path(command["file"]).stem
                spec = importlib.util.spec_from_file_location(name, command["file"])
                assert spec is not None
                assert spec.loader is not None
                module = importlib.util.module_from_spec(spec)
                sys.modules[name] = module
                spec.loader.exec_module(module)
                modules[command["file"]] = module
            value = getattr(modules[command["file"]], command["function"])(*command["args"])
            _answer(process=number, value=value)
        except BaseException as error:
            message = str(error) if str(error) else traceback.format_exc()
            shared = facts_of(error).shared
            _answer(process=number, error=type(error).__name__, message=message, shared=shared)


def _answer(**fields: Any) -> None:
    sys.__stdout__.write(f"ANSWER {json.dumps(fields)}\n")
    sys.__stdout__.flush()


if __name__ == "__main__":
    _work(*map(int, sys.argv[1:5]))
