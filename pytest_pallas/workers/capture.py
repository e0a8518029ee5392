"""Keep what a process writes to its stdout and stderr, in a file that cannot grow without end."""

from __future__ import annotations

import fcntl
import os
import tempfile

#: How much of the end of the output is kept.
KEPT_BYTES = 64 * 1024

#: The file is emptied, but for its end, when it is larger than this.
FILE_BYTES = 16 * 1024 * 1024


class Capture:
    """A file without a name for the output of one process, emptied for each job."""

    def __init__(self) -> None:
        # A pipe would block a worker whose supervisor is slow, and lose what a dead one wrote.
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self._earlier = b""
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        # Writers continue at the end of the file, wherever emptying it has put that.
        fcntl.fcntl(self._file, fcntl.F_SETFL, flags | os.O_APPEND)

    def fileno(self) -> int:
        """The descriptor to give to a process as its stdout and stderr."""
        return self._file.fileno()

    def clear(self) -> None:
        """Forget what was written."""
        self._earlier = b""
        os.ftruncate(self.fileno(), 0)

    def trim(self) -> None:
        """Empty the file but for its end, if it has become large."""
        if os.fstat(self.fileno()).st_size > FILE_BYTES:
            self._earlier = self._tail()
            os.ftruncate(self.fileno(), 0)

    def text(self) -> str:
        """The end of what was written since ``clear``; bytes that are no UTF-8 are replaced."""
        return self._tail().decode(errors="replace")

    def close(self) -> None:
        """Let the file go."""
        self._file.close()

    def _tail(self) -> bytes:
        size = os.fstat(self.fileno()).st_size
        end = os.pread(self.fileno(), KEPT_BYTES, max(0, size - KEPT_BYTES))
        return (self._earlier + end)[-KEPT_BYTES:]
