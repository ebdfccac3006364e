"""Machine code that numba compiles, kept on disk for later runs, which may run at the same time:
what one process compiles, another that needs it waits for and loads."""

from __future__ import annotations

import fcntl
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cache
from hashlib import sha256
from io import BytesIO
from types import FrameType
from typing import IO, Any, TypeVar

import numba
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    NullCache,
    UserProvidedCacheLocator,
)
from numba.core.ccallback import CFunc
from numba.core.dispatcher import CompilingCounter
from numba.core.sigutils import normalize_signature

from moesaic.core.caches import announce
from moesaic.core.files import whole_file

F = TypeVar("F", bound=Callable[..., object])


def kept(function: F, folder: str | None, **options: Any) -> F:
    """The function, compiled on its first call with numba's `options`, or loaded from `folder`;
    None keeps nothing."""
    jitted = numba.njit(**options)(function)
    jitted._cache = code = _code_of(function, folder)
    jitted._compiling_counter = _Compiling(code)
    compiled: F = jitted
    return compiled


def kept_c_function(
    signature: Any, function: Callable[..., object], folder: str | None, **options: Any
) -> Any:
    """The function for C callers, compiled now or loaded from `folder`: it has an `address`."""
    compiled: Any = CFunc(
        function, normalize_signature(signature), locals={}, options={"nopython": True, **options}
    )
    compiled._cache = code = _code_of(function, folder)
    with _Compiling(code):
        compiled.compile()
    return compiled


def _code_of(function: Callable[..., object], folder: str | None) -> _KeptCode | _UnkeptCode:
    """NUMBA_CACHE_DIR, where it is set, is preferred to `folder`."""
    place = numba.config.CACHE_DIR or folder
    if place is None:
        return _UnkeptCode()
    try:
        with _numba_cache_dir(place):
            return _KeptCode(function)
    except RuntimeError:  # numba cannot write there
        _announce_unkept(place, "it cannot be written")
        return _UnkeptCode()


@contextmanager
def _numba_cache_dir(folder: str) -> Iterator[None]:
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = folder
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


@cache
def _announce_unkept(folder: str, why: str) -> None:
    announce(f"compiled planners are not kept in {folder} ({why}): every run compiles them again")


class _Compiling(CompilingCounter):
    """Numba enters this before it looks for code, again for every call of the function by itself,
    and leaves it after saving or failing."""

    def __init__(self, code: _KeptCode | _UnkeptCode) -> None:
        super().__init__()
        self._code = code

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if not self:
            self._code.let_others_compile()


class _InGivenFolder(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (UserProvidedCacheLocator,)  # not beside the package's sources


class _UnkeptCode(NullCache):  # type: ignore[misc]
    def load_overload(self, signature: Any, target: Any) -> None:
        defer_signals_in(target.codegen()._engine)

    def let_others_compile(self) -> None:
        pass


class _KeptCode(FunctionCache):  # type: ignore[misc]
    """Code that cannot be loaded is compiled again; code that cannot be saved is still used."""

    _impl_class = _InGivenFolder

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp()
        self._files = SharedFiles(self._cache_path, self._impl.filename_base, stamp)
        self._cache_file = self._files

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Load kept code; where there is none, numba compiles and saves next."""
        defer_signals_in(target.codegen()._engine)  # this is asked for before code is made
        if (found := self._loaded(signature, target)) is not None:
            return found
        with suppress(OSError):  # a folder that has become read-only
            self._files.compile_alone()
        return self._loaded(signature, target)

    def let_others_compile(self) -> None:
        self._files.let_others_compile()

    def _loaded(self, signature: Any, target: Any) -> Any:
        try:
            return super().load_overload(signature, target)
        except Exception:  # whatever another version of the compiler has left there
            return None

    def save_overload(self, signature: Any, data: Any) -> None:
        try:
            super().save_overload(signature, data)
        except OSError as error:  # a full disk, a folder that has become read-only
            _announce_unkept(self._cache_path, error.strerror or str(error))


# Lets signals wait while the compiler calls back into Python. LLVM calls Python functions when it
# has made machine code. A signal that came meanwhile is handled in them, and what its handler
# raises (KeyboardInterrupt, the end by SIGTERM) is printed as "Exception ignored" and lost: the
# process continues without the code that LLVM has just made.

_ENDING = ("SIGINT", "SIGTERM", "SIGHUP")


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Handlers in Python that end the process run at the end of the block. Python handles signals
    in its main thread only, so that other threads need nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    try:
        with ExitStack() as handlers:
            for number in (getattr(signal, name) for name in _ENDING if hasattr(signal, name)):
                handler = signal.getsignal(number)
                if callable(handler):
                    handlers.callback(signal.signal, number, handler)
                    signal.signal(number, note)
            yield
    finally:
        if came:
            signal.raise_signal(came[0])


@cache
def defer_signals_in(engine: Any) -> None:
    """Make numba's engine, which has one for all functions, defer signals while it makes code."""
    finalize = engine.finalize_object

    def finalize_object() -> None:
        with deferred_signals():
            finalize()

    engine.finalize_object = finalize_object


# Files of one function's compiled code: written whole, checked when read, locked while used.

_DIGEST_BYTES = sha256().digest_size


class SharedFiles(IndexDataCacheFile):  # type: ignore[misc]
    """A function's code for each kind of arguments has a number, which an index keeps. Numba reads
    the index, takes the next number and writes both without a lock: of two processes that compile
    for different arguments at once, one's code would stand under the other's arguments for good.

    Every file begins with a hash of the rest. After a power cut a file may be empty, cut or full of
    other bytes, and loading such machine code may do anything: a file whose hash is wrong counts
    as missing, and saving replaces it."""

    _compiling: IO[bytes] | None = None

    def compile_alone(self) -> None:
        """Wait for a process that compiles the same function. Callers wait before those they call,
        in every process, so that no two wait for each other."""
        if self._compiling is None:
            os.makedirs(self._cache_path, exist_ok=True)
            file = open(f"{self._index_path}.compiling", "ab")  # noqa: SIM115
            fcntl.flock(file, fcntl.LOCK_EX)
            self._compiling = file

    def let_others_compile(self) -> None:
        if self._compiling is not None:
            fcntl.flock(self._compiling, fcntl.LOCK_UN)  # a process forked meanwhile has it, too
            self._compiling.close()
            self._compiling = None

    def save(self, key: object, data: object) -> None:
        with self._locked(fcntl.LOCK_EX):
            super().save(key, data)

    def load(self, key: object) -> object:
        with self._locked(fcntl.LOCK_SH):
            return super().load(key)

    @contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        os.makedirs(self._cache_path, exist_ok=True)  # another process may have removed it
        with open(f"{self._index_path}.lock", "ab") as file:
            fcntl.flock(file, kind)
            yield

    def _load_index(self) -> dict[object, str]:
        try:
            stored = BytesIO(_checked(self._index_path))
            if pickle.load(stored) != self._version:
                return {}
            stamp, names = pickle.load(stored)
        except (OSError, _Damaged):
            return {}
        found: dict[object, str] = names
        return found if stamp == self._source_stamp else {}

    def _load_data(self, name: str) -> Any:
        try:
            return pickle.loads(_checked(self._data_path(name)))
        except _Damaged:
            return None

    @contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[IO[bytes]]:
        content = BytesIO()
        yield content
        written = content.getvalue()
        file: AbstractContextManager[IO[bytes]] = whole_file(filepath)
        with file as stream:
            stream.write(sha256(written).digest() + written)


class _Damaged(Exception):
    """The file is not what was written."""


def _checked(path: str) -> bytes:
    """The file's content without its hash."""
    with open(path, "rb") as file:
        digest, content = file.read(_DIGEST_BYTES), file.read()
    if sha256(content).digest() != digest:
        raise _Damaged
    return content
