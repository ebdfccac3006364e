"""Guards one program: this file is run, not imported, by `sandbox`, in a Python of its own.

    python -I sandbox_child.py FOLDER LIMITS < program

The guard separates itself from the system as far as it may, lets a fork run the program under
limits, and ends everything that is left when it has finished or its time is over. Then it writes
one JSON object: passed, why not, and what was separated. Only the standard library is known here.
"""

from __future__ import annotations

import ctypes
import errno
import json
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any, NoReturn

# Of Linux, the same on every processor.
_NEW_NS, _NEW_IPC, _NEW_USER = 0x00020000, 0x08000000, 0x10000000
_NEW_PID, _NEW_NET = 0x20000000, 0x40000000
_PRIVATE, _NO_SUID, _NO_DEV, _NO_EXEC = (1 << 18) | 0x4000, 2, 4, 8  # private: with all below
_READ_ONLY, _HERE, _RECURSIVE, _MOUNT_SETATTR = 1, -100, 0x8000, 442
_PARENT_DEATH, _NO_NEW_PRIVILEGES, _REAPER = 1, 38, 36
_CAPABILITIES = 0x20080522

_MOMENT_S = 0.002
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# What the interpreter announces before it does it, by the first part of the name.
_NEVER = ("ctypes", "pty", "socket", "sqlite3", "subprocess", "urllib", "webbrowser")
_NEVER_OS = ("exec", "fork", "forkpty", "kill", "killpg", "posix_spawn", "spawn", "system")
_WITH_BASE = ("chmod", "chown", "link", "mkdir", "remove", "rename", "rmdir", "symlink", "utime")
_CHANGES = (*_WITH_BASE, "chflags", "removexattr", "setxattr", "truncate")


def main() -> None:
    folder, limits = os.path.realpath(sys.argv[1]), json.loads(sys.argv[2])
    source = sys.stdin.buffer.read()
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    separated: list[str] = []
    if libc is not None:
        libc.prctl(_REAPER, 1, 0, 0, 0)  # orphans become our children
        if limits["separate"]:
            separated = _separate(libc, folder, limits["folder_bytes"])
    reading, writing = os.pipe()
    program = os.fork()
    if program == 0:
        os.close(reading)
        if "processes" in separated:
            _hide_processes(libc)
        _become_program(libc, folder, limits, source, writing)
    os.close(writing)
    status = _wait(program, time.monotonic() + limits["seconds"])
    _end_others(program)
    passed, why = _verdict(_said(reading), status)
    json.dump({"passed": passed, "why": why, "separated": separated}, sys.stdout)


def _separate(libc: Any, folder: str, limit_bytes: int) -> list[str]:
    """A system of its own for the program, where the kernel allows it: no network, no other
    processes, nothing writable but an empty folder in memory."""
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEW_USER | _NEW_NET | _NEW_PID | _NEW_NS | _NEW_IPC) != 0:
        return []
    separated = ["network", "processes"]
    try:
        for name, value in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(value)
    except OSError:
        return separated
    if _only_folder_is_writable(libc, folder.encode(), limit_bytes):
        separated.append("files")
    return separated


def _only_folder_is_writable(libc: Any, folder: bytes, limit_bytes: int) -> bool:
    read_only = (ctypes.c_uint64 * 4)(_READ_ONLY, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(read_only))
    options = f"size={limit_bytes},nr_inodes=1000,mode=700".encode()
    steps: tuple[Callable[[], int], ...] = (
        lambda: int(libc.mount(None, b"/", None, ctypes.c_ulong(_PRIVATE), None)),
        lambda: int(
            libc.syscall(ctypes.c_long(_MOUNT_SETATTR), _HERE, b"/", _RECURSIVE, read_only, size)
        ),
        lambda: int(
            libc.mount(b"tmpfs", folder, b"tmpfs", ctypes.c_ulong(_NO_SUID | _NO_DEV), options)
        ),
    )
    return all(step() == 0 for step in steps)


def _hide_processes(libc: Any) -> None:
    """Hide the system's processes: /proc shows their command lines. The guard keeps its own
    /proc."""
    flags = ctypes.c_ulong(_READ_ONLY | _NO_SUID | _NO_DEV | _NO_EXEC)
    if libc.unshare(_NEW_NS) == 0 and libc.mount(b"proc", b"/proc", b"proc", flags, None) != 0:
        libc.mount(b"tmpfs", b"/proc", b"tmpfs", flags, None)  # containers refuse the former


def _become_program(
    libc: Any, folder: str, limits: dict[str, Any], source: bytes, writing: int
) -> NoReturn:
    os.setsid()
    os.chdir(folder)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    if libc is not None:
        libc.prctl(_PARENT_DEATH, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        libc.capset((ctypes.c_uint32 * 2)(_CAPABILITIES, 0), (ctypes.c_uint32 * 6)())
    _limit(limits)
    said = b"passed"
    try:
        code = compile(source, "program.py", "exec", dont_inherit=True)  # no `annotations` of ours
        maximum = limits["folder_bytes"] // limits["file_bytes"]
        sys.addaudithook(_guard(folder, maximum))
        # A module like any other: what stands under `if __name__ == "__main__"` is no test.
        module = sys.modules["program"] = ModuleType("program")
        exec(code, module.__dict__)
    except MemoryError:
        said = b"out of memory"
    except BaseException as error:
        said = _error_text(error)
    os.write(writing, said)
    os._exit(0)


def _limit(limits: dict[str, Any]) -> None:
    seconds = math.ceil(limits["seconds"])
    for name, maximum in (
        ("RLIMIT_CPU", seconds),
        ("RLIMIT_AS", limits["memory_bytes"]),
        ("RLIMIT_FSIZE", limits["file_bytes"]),
        ("RLIMIT_NOFILE", limits["open_files"]),
        ("RLIMIT_NPROC", 0),  # the program has its process already
        ("RLIMIT_CORE", 0),
    ):
        which = getattr(resource, name, None)
        if which is not None:
            resource.setrlimit(which, (maximum, maximum))


def _guard(folder: str, maximum: int) -> Callable[[str, tuple[Any, ...]], None]:
    """Refuses what the interpreter announces and no exercise needs. It holds wherever Python does,
    for programs that do not set out to get around it. At most so many files are written."""
    inside = folder + os.sep
    written: set[str] = set()

    def check(event: str, arguments: tuple[Any, ...]) -> None:
        first, _, second = event.partition(".")
        if first in _NEVER or (first == "os" and second in _NEVER_OS):
            raise PermissionError(f"{event} is not allowed here")
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITING:
                refuse_outside(path)
                written.add(str(path))
                if len(written) > maximum:
                    raise PermissionError(f"more than {maximum} files are not allowed here")
        elif first == "os" and second in _CHANGES:
            base = arguments[-1] if second in _WITH_BASE else -1
            for path in arguments[: 2 if second in ("link", "rename", "symlink") else 1]:
                refuse_outside(path, base)

    def refuse_outside(path: Any, base: int = -1) -> None:
        if isinstance(path, int) or path is None:
            return  # a file that is open already
        place = os.fsdecode(path)
        if base >= 0:
            place = os.path.join(os.readlink(f"/proc/self/fd/{base}"), place)
        place = os.path.realpath(place)
        if place != os.devnull and not place.startswith(inside):
            raise PermissionError(errno.EACCES, "outside of the program's folder", place)

    return check


def _wait(program: int, deadline: float) -> int | None:
    """Its status; None where its time ended first."""
    while time.monotonic() < deadline:
        ended, status = os.waitpid(program, os.WNOHANG)
        if ended:
            return status
        time.sleep(_MOMENT_S)
    os.kill(program, signal.SIGKILL)
    os.waitpid(program, 0)
    return None


def _end_others(program: int) -> None:
    """Whatever it has started: where processes are separated, they ended with it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(program, signal.SIGKILL)
    while children := _children():
        for child in children:
            os.kill(child, signal.SIGKILL)
        for _ in children:
            os.waitpid(-1, 0)


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def _said(reading: int) -> bytes:
    os.set_blocking(reading, False)
    try:
        return os.read(reading, 4096)
    except BlockingIOError:
        return b""


def _verdict(said: bytes, status: int | None) -> tuple[bool, str]:
    if status is None:
        return False, "out of time"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        late = number in (signal.SIGXCPU, signal.SIGKILL)
        return False, "out of time" if late else f"ended by {signal.Signals(number).name}"
    if not said:
        return False, "left before its end"
    return said == b"passed", "" if said == b"passed" else said.decode(errors="replace")


def _error_text(error: BaseException) -> bytes:
    try:
        words = f"{type(error).__name__}: {error}".rstrip(": ")
    except BaseException:  # the error is the program's own
        words = "an error without a message"
    return words[:300].encode(errors="replace")


if __name__ == "__main__":
    main()
