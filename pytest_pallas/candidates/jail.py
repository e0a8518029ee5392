"""Take away from a process what the code that it is about to run may not have.

Namespaces of Linux give it no network, no other processes and a file system of its own, in which it
can write in one small folder only; where they are not allowed, Landlock forbids writing elsewhere.
SandboxLimits of the system hold in both cases. ``enter`` says what is in force.

This runs in a fork of a process without threads. It uses system calls by ``ctypes``, because
Python has no functions for them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass

#: Where the candidate's files are, if it has a file system of its own.
FOLDER = "/candidate"

_NEWNS, _NEWUTS, _NEWIPC = 0x00020000, 0x04000000, 0x08000000
_NEWUSER, _NEWPID, _NEWNET = 0x10000000, 0x20000000, 0x40000000
_RDONLY, _NOSUID, _NODEV, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_DETACH = 2

#: Numbers of system calls, by machine.
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR = 442
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446

_SET_PDEATHSIG, _SET_SUBREAPER, _SET_NO_NEW_PRIVS = 1, 36, 38

#: ``nobody``: whom the candidate is run as by ``root``.
_NOBODY = 65534


@dataclass(frozen=True, kw_only=True)
class SandboxLimits:
    """What a candidate may use.

    Attributes:
      seconds: of time, from the start until its last answer.
      memory: bytes of memory, of all its processes together.
      files: bytes of files.
      processes: how many processes and threads.
      output: bytes that it may print.
      answer: bytes that it may answer.
    """

    seconds: float = 30.0
    memory: int = 2 << 30
    files: int = 32 << 20
    processes: int = 256
    output: int = 16 << 20
    answer: int = 256 << 20


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _unshare(flags: int) -> None:
    _call(_libc().unshare(flags), "unshare")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    encoded = (text and text.encode() for text in (source, target, kind, data))
    first, second, third, fourth = encoded
    _call(
        _libc().mount(first, second, third, ctypes.c_ulong(flags), fourth or None),
        f"mount {target}",
    )


def separate(root: str, visible: Sequence[str], limits: SandboxLimits) -> list[str]:
    """Give this process namespaces of its own; its children are in a new process namespace.

    Args:
      root: an empty folder.
      visible: folders that remain, for reading.
      limits: how many bytes of files it may write.

    Returns:
      What is in force; () where the system does not allow it, and nothing is changed.
    """
    if sys.platform != "linux":
        return []
    names = ["process namespace", "network namespace", "file system of its own"]
    others = _NEWNS | _NEWPID | _NEWNET | _NEWIPC | _NEWUTS
    user, group = os.getuid(), os.getgid()
    try:
        if user != 0:
            raise PermissionError
        _unshare(others)
    except OSError:
        try:
            _unshare(others | _NEWUSER)
        except OSError:
            return []
        names.insert(0, "user namespace")
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    _own_files(root, visible, limits)
    return names


def _own_files(root: str, visible: Sequence[str], limits: SandboxLimits) -> None:
    """Change to a file system of this process's own, with some folders of the real one."""
    _mount("none", "/", None, _REC | _PRIVATE)
    _mount("tmpfs", root, "tmpfs", _NOSUID | _NODEV, "size=1m,mode=755")
    for path in visible:
        target = f"{root}{path}"
        if os.path.isdir(path):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "w", encoding="ascii"):
                pass
        _mount(path, target, None, _BIND | _REC)
        if not path.startswith("/dev/"):
            _make_read_only(target)
    for folder in ("proc", "tmp", FOLDER[1:]):
        os.makedirs(f"{root}/{folder}", exist_ok=True)
    options = f"size={limits.files},nr_inodes=1024,mode=777"
    _mount("tmpfs", f"{root}{FOLDER}", "tmpfs", _NOSUID | _NODEV, options)
    os.chdir(root)
    _call(_libc().syscall(_PIVOT_ROOT[platform.machine()], b".", b"."), "pivot_root")
    _call(_libc().umount2(b".", _DETACH), "umount")
    os.chdir("/")
    _mount("none", "/", None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)


def _make_read_only(path: str) -> None:
    """Make a mount, and those under it, such that nothing can be written."""
    attributes = struct.pack("<QQQQ", _RDONLY | _NOSUID | _NODEV, 0, 0, 0)
    recursive = 0x8000
    number = ctypes.c_long(_MOUNT_SETATTR)
    at = ctypes.c_int(-100)
    arguments = (at, path.encode(), recursive, attributes, ctypes.c_size_t(len(attributes)))
    if _libc().syscall(number, *arguments) < 0:
        _mount("none", path, None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)


def restrict(separated: bool, folder: str, limits: SandboxLimits) -> list[str]:
    """Give up privileges, and set limits; the last step before the candidate's code.

    Args:
      separated: whether ``separate`` was possible.
      folder: where the candidate may write.
      limits: what it may use.

    Returns:
      What is in force.
    """
    names: list[str] = []
    if separated:
        with contextlib.suppress(OSError):
            _mount("proc", "/proc", "proc", _NOSUID | _NODEV | _RDONLY)
    for number, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, int(limits.seconds) + 1),
        (resource.RLIMIT_DATA, limits.memory),
        (resource.RLIMIT_FSIZE, limits.files),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_NPROC, limits.processes),
    ):
        most = resource.getrlimit(number)[1]
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(number, (value, value))
    names.append("limits of memory, time, files and processes")
    if sys.platform != "linux":
        return names
    libc = _libc()
    _call(libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    if not separated and _landlock(folder):
        names.append("Landlock: writes in one folder only")
    if os.getuid() == 0 and (separated or _open_to_all(sys.base_prefix)):
        with contextlib.suppress(OSError):
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
            names.append("user nobody")
    header = struct.pack("<Ii", 0x20080522, 0)
    if libc.capset(header, bytes(24)) == 0:
        names.append("no capabilities")
    end_with_parent()
    return names


def end_with_parent() -> None:
    """Let the system end this process when its parent ends."""
    if sys.platform == "linux":
        _call(_libc().prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def _open_to_all(path: str) -> bool:
    """Return whether every user can read a folder."""
    folders = [path]
    while folders[-1] != "/":
        folders.append(os.path.dirname(folders[-1]))
    return all(os.stat(folder).st_mode & 0o005 == 0o005 for folder in folders)


def adopt_orphans() -> None:
    """Become the parent of the orphans among one's descendants."""
    if sys.platform == "linux":
        _libc().prctl(_SET_SUBREAPER, 1, 0, 0, 0)


#: Rights of Landlock that change files: writing, removing, making, referring, truncating.
_WRITES = 0b0110_1111_1111_0010


def _landlock(folder: str) -> bool:
    """Forbid to write anywhere else than in a folder, and to use TCP; return whether it can."""
    libc = _libc()
    version = libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    files = _WRITES & ((1 << 13) - 1 | (1 << 13 if version > 1 else 0) | (version > 2) << 14)
    rules = struct.pack("<QQQ", files, 3 if version > 3 else 0, 3 if version > 5 else 0)
    size = 24 if version > 5 else 16 if version > 3 else 8
    handle = libc.syscall(_LANDLOCK_CREATE, rules[:size], ctypes.c_size_t(size), 0)
    if handle < 0:
        return False
    try:
        for path, rights in ((folder, files), ("/dev/null", 2)):
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rule = struct.pack("<Qi", rights, opened)
            added = libc.syscall(_LANDLOCK_ADD, handle, 1, rule, 0)
            os.close(opened)
            if added < 0:
                return False
        return libc.syscall(_LANDLOCK_RESTRICT, handle, 0) == 0
    finally:
        os.close(handle)
