"""A Redis server of one's own: on a free loopback port, in memory, gone afterwards."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAM = shutil.which("redis-server")

MISSING = "redis-server is not installed (apt-get install redis-server)"


@dataclass(frozen=True)
class Server:
    """A running server."""

    process: subprocess.Popen[bytes]
    port: int
    socket: Path
    password: str

    @property
    def url(self) -> str:
        """What ``--pallas-database`` takes."""
        who = f":{self.password}@" if self.password else ""
        return f"redis://{who}127.0.0.1:{self.port}/0"

    def kill(self) -> None:
        """End it without a word, as a machine that loses its power."""
        self.process.kill()
        self.process.wait()


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def serving(folder: Path, *, password: str = "") -> Iterator[Server]:
    """A server that keeps nothing on disk."""
    assert PROGRAM is not None, MISSING
    port = free_port()
    path = folder / "redis.sock"
    words = [PROGRAM, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    words += ["--save", "", "--appendonly", "no", "--unixsocket", str(path)]
    words += ["--requirepass", password] if password else []
    with (folder / "redis.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        _wait(process, port, folder / "redis.log")
        yield Server(process, port, path, password)
    finally:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + 10
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError(f"redis-server did not start: {log.read_text()}")
