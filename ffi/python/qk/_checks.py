"""What may cross into C: integers that fit, text that C's strings can hold, handles with one owner.

ctypes cuts an integer to the width of C's type, and C ends a string at its first zero byte; both in
silence, so whatever a caller gives comes through here.
"""
from __future__ import annotations

import operator
import os
from types import TracebackType
from typing import Any, NoReturn

import numpy as np

from ._errors import refuse

INT32_MAX, INT64_MAX, SIZE_MAX = 2**31 - 1, 2**63 - 1, 2**64 - 1


def integer(value: Any, name: str, low: int, high: int) -> int:
    """An int or another package's integer from low to high; no bool and no float."""
    try:
        number = None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise refuse("ARGUMENT",
                     f"{name}: is {value!r}, accepted are integers from {low} to {high}")
    if not low <= number <= high:
        raise refuse("ARGUMENT", f"{name}: is {number}, accepted are {low} to {high}")
    return number


def text(value: Any, name: str) -> bytes:
    """A str as UTF-8 for a const char *."""
    if not isinstance(value, str):
        raise refuse("ARGUMENT", f"{name}: is {value!r}, accepted is a str")
    if "\0" in value:
        raise refuse("ARGUMENT", f"{name}: {value!r} has a zero byte, where C's text ends")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise refuse("ARGUMENT", f"{name}: {value!r} has half a surrogate pair, which UTF-8 "
                     "cannot hold") from None


def path_bytes(path: str | os.PathLike[str], name: str = "path") -> bytes:
    """A path as the system spells it; its bytes need not be UTF-8."""
    try:
        spelled = os.fsencode(path)
    except UnicodeEncodeError:
        raise refuse("ARGUMENT", f"{name}: {path!r} has half a surrogate pair, which no file name "
                     "can hold") from None
    if b"\0" in spelled:
        raise refuse("ARGUMENT", f"{name}: {path!r} has a zero byte, which no file name can hold")
    return spelled


class Handle:
    """What owns a handle of the library: given back once, and never copied."""

    __slots__ = ("_handle",)
    _handle: int | None
    _destroy: Any  #: the library's function
    _what: str  #: in sentences
    _instead: str  #: of a copy

    @property
    def handle(self) -> int:
        """The address that C knows; raises where this is closed."""
        if self._handle is None:
            raise refuse("STATE", f"{self._what}: is closed")
        return self._handle

    @property
    def _as_parameter_(self) -> int | None:
        """What ctypes passes for this object, which a call then keeps alive; closed: NULL."""
        return self._handle

    def close(self) -> None:
        """Gives the handle back; with `with` at the end of the block, else when collected."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._destroy(handle)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self._destroy(self._handle)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:  # copy, deepcopy and pickle all ask here
        raise TypeError(f"qk.{type(self).__name__}: cannot be copied or pickled, for it owns "
                        f"memory of the library; {self._instead}")
