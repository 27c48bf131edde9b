"""Files being written: a whole new one in the old one's place, or the old one as it was."""
from __future__ import annotations

import ctypes
import errno
import os
from typing import Any

from ._abi import CONSTANTS, STRUCTS, lib
from ._checks import Handle, path_bytes
from ._errors import ExistsError, make_error


class Message:
    """A qk_io_message and the exception it becomes."""

    def __init__(self) -> None:
        self.struct = STRUCTS["qk_io_message"]()
        self.reference = ctypes.byref(self.struct)

    def call(self, function: Any, *arguments: Any) -> str:
        """Returns the note that a successful call may leave."""
        status = function(*arguments, self.reference)
        if status:
            raise make_error(status, self.struct.text)
        return self.struct.text.decode("utf-8", "replace")  # type: ignore[no-any-return]


class Writer(Handle):
    """One file; closed before finish(), it leaves nothing."""

    __slots__ = ()
    _destroy = lib.qk_writer_destroy
    _what = "writer"
    _instead = "another of its path would be another file"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._handle = None
        out = ctypes.c_void_p()
        Message().call(lib.qk_writer_create, path_bytes(path), None, ctypes.byref(out))
        self._handle = out.value

    def call(self, function: Any, *arguments: Any) -> None:
        Message().call(function, self, *arguments)


def finish(*writers: Writer) -> None:
    """All files take their places, or everything stays as it was."""
    handles = (ctypes.c_void_p * len(writers))(*(writer.handle for writer in writers))
    Message().call(lib.qk_writer_finish_all, handles, len(writers), None, 0)


def refuse_existing(path: str | os.PathLike[str], overwrite: bool, name: str = "path",
                    what: str = "is there already") -> None:
    path_bytes(path, name)
    if os.path.exists(path) and not overwrite:
        error = ExistsError(CONSTANTS["QK_ERROR_FILE"], f"{name}: {os.fsdecode(path)} {what}; "
                            "overwrite=True replaces it")
        error.errno, error.filename = errno.EEXIST, path
        raise error


def write_bytes(path: str | os.PathLike[str], data: bytes, overwrite: bool) -> None:
    refuse_existing(path, overwrite)
    with Writer(path) as writer:
        writer.call(lib.qk_writer_append, data, len(data))
        finish(writer)
