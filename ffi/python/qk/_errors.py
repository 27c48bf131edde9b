"""Exceptions, one a hundred of qk_status. str(error) is the library's own sentence."""
from __future__ import annotations

from typing import Any

from ._abi import CONSTANTS, lib


class Error(Exception):
    """Anything the library refused; `status` is the qk_status, `name` its name in qk.h."""

    def __init__(self, status: int, sentence: str = "") -> None:
        super().__init__(sentence or lib.qk_status_string(status).decode())
        self.status = status

    def __reduce__(self) -> tuple[Any, ...]:  # a worker process sends its errors pickled
        return type(self), (self.status, str(self))

    @property
    def name(self) -> str:
        return _NAMES.get(self.status, "unknown")


class CallError(Error, ValueError):
    """1xx: the call is wrong."""


class UnsupportedError(Error, NotImplementedError):
    """2xx: valid, but not in this build or on this device."""


class ResourceError(Error, MemoryError):
    """3xx: out of memory or workspace."""


class DeviceError(Error, RuntimeError):
    """4xx: the device failed; close the context."""


class StorageError(Error, OSError):
    """5xx: stored bytes are damaged, or a file could not be opened, read or written."""

    __str__ = Exception.__str__  # OSError would look for an errno


class ExistsError(StorageError, FileExistsError):
    """A file is there already, and overwrite=True was not given."""


class InternalError(Error, RuntimeError):
    """9xx: a bug in qk; please report it."""


_CLASSES: dict[int, type[Error]] = {1: CallError, 2: UnsupportedError, 3: ResourceError,
                                    4: DeviceError, 5: StorageError, 9: InternalError}
_NAMES = {value: name for name, value in CONSTANTS.items() if name.startswith("QK_ERROR_")}


def make_error(status: int, sentence: bytes | str = "") -> Error:
    """The exception for a status; an unknown status counts as its hundred."""
    text = sentence.decode("utf-8", "replace") if isinstance(sentence, bytes) else sentence
    return _CLASSES.get(status // 100, InternalError)(status, text)


def refuse(name: str, sentence: str) -> CallError:
    """What Python itself refuses, in the library's words: refuse("SHAPE", "x: ...")."""
    return CallError(CONSTANTS[f"QK_ERROR_{name}"], sentence)
