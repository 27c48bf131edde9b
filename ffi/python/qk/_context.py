"""Contexts: one device, one stream, one workspace. Most programs never name one."""
from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, NamedTuple

from ._abi import CONSTANTS, STRUCTS, lib, names
from ._checks import INT32_MAX, SIZE_MAX, Handle, integer
from ._errors import Error, ResourceError, make_error, refuse

DEVICES = names("DEVICE")
MODES: dict[str | None, int] = {None: 0}
MODES.update(names("CONTEXT"))
MAX_THREADS = 1024  # qk.h, qk_context_options
INSTRUCTION_SETS = names("ISA")
_EXTENDED = {"avx512": "avx2", "avx_vnni": "avx2", "dotprod": "neon", "i8mm": "dotprod"}
_TRACE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(STRUCTS["qk_trace"]))
_current = threading.local()  # .stack: contexts entered by `with`; .defaults: {(device, index): c}


class Trace(NamedTuple):
    """A kernel that has run, or on CUDA is queued."""

    operation: str  #: "multiply", "quantize", "dequantize", "repack", "gru_run"
    kernel: str  #: its name, which may change between versions
    shape: tuple[int, ...]  #: multiply: m, n, k; gru_run: t, b, c, h; else rows, columns
    seconds: float  #: of the call on the host
    status: int  #: 0, or that of the call's error


class Context(Handle):
    """Device, stream, threads and scratch memory of the calls made through it.

    device: "cpu" or "cuda". threads: CPU, 0 for all cores. stream: a cudaStream_t as an integer
    (torch.cuda.current_stream().cuda_stream), borrowed; None for the default stream.
    workspace_bytes: scratch allocated once, as much as Tensor.workspace_bytes() says, and calls
    that need more are refused, or run slower kernels where there are any (CUDA); None: it grows to
    what calls need or, on CUDA, are faster with (up to some 100 MB for large batches).
    mode: CPU, "bf16_products" or "int8_activations" let linear() be less exact and faster
    (docs/formats.md, "Modes of qk_linear"); None: exact.
    instruction_sets: CPU, what kernels may use, with what each extends: "avx2", or several as in
    ["avx512_vnni", "avx512_vbmi"]; None: all that the processor has. Asking for what it lacks is
    no error: `context.instruction_sets` says what is used, `context.threads` how many threads.
    trace: called with a qk.Trace of each kernel that runs; it must not use the context.

    `with context:` makes it this thread's current one for its device. A context runs one call at
    a time: a second thread waits, so give each thread its own (the implicit ones are). A forked
    child may go on with CPU contexts that it inherits, also those that a thread was using.
    """

    __slots__ = ("_lock", "_process", "_fixed_stream", "_stream", "_options", "device", "index",
                 "mode", "workspace_bytes", "_scratch", "_trace", "slots", "__weakref__")
    _destroy = lib.qk_context_destroy
    _what = "context"
    _instead = "qk.Context() makes another, which each thread and process needs anyway"

    def __init__(self, device: str = "cpu", index: int = 0, *, threads: int = 0,
                 stream: int | None = None, workspace_bytes: int | None = None,
                 mode: str | None = None,
                 instruction_sets: str | Iterable[str] | None = None,
                 trace: Callable[[Trace], object] | None = None) -> None:
        self._handle = None
        for name, value, table in (("device", device, DEVICES), ("mode", mode, MODES)):
            if value not in table:
                accepted = ", ".join(map(str, table))
                raise refuse("ARGUMENT", f"{name}: is {value!r}, accepted are {accepted}")
        index = integer(index, "index", 0, INT32_MAX)
        if workspace_bytes is not None:
            workspace_bytes = integer(workspace_bytes, "workspace_bytes", 0, SIZE_MAX)
        stream = _checked_stream(stream)
        self._options = {"thread_count": integer(threads, "threads", 0, MAX_THREADS),
                         "flags": MODES[mode], "device_index": index,
                         "instruction_sets": _isa_bits(instruction_sets)}
        self._trace = None if trace is None else _trace_callback(trace)  # C has its address
        if self._trace is not None:
            self._options["trace"] = ctypes.cast(self._trace, ctypes.c_void_p).value or 0
        self._lock, self._process = threading.Lock(), os.getpid()
        self.device, self.index, self._stream, self.mode = device, index, stream, mode
        self.workspace_bytes, self._fixed_stream = workspace_bytes, stream is not None
        self._scratch = workspace_bytes or 0  # what the handle has
        self.slots: Any = None  # tensors over addresses that come again: qk.torch's
        self._handle = self._create(self._scratch)
        _contexts.add(self)

    def _create(self, workspace_bytes: int) -> int | None:
        options = STRUCTS["qk_context_options"](
            struct_size=ctypes.sizeof(STRUCTS["qk_context_options"]),
            abi_version=CONSTANTS["QK_ABI_VERSION"], device=DEVICES[self.device],
            stream=self._stream, workspace_bytes=workspace_bytes, **self._options)
        out = ctypes.c_void_p()
        status = lib.qk_context_create(ctypes.byref(options), ctypes.byref(out))
        if status:
            raise make_error(status, f"context on {self.device}:{self.index}: "
                             + lib.qk_status_string(status).decode())
        return out.value

    def call_growing(self, need: Callable[[], int], function: Any, *arguments: Any) -> None:
        """call(), with as much more scratch as need() says where that was left open."""
        try:
            self.call(function, *arguments)
        except ResourceError as error:
            if error.status != CONSTANTS["QK_ERROR_WORKSPACE"] or self.workspace_bytes is not None:
                raise
            self._grow(need())
            self.call(function, *arguments)

    def grow_for_speed(self, need: int) -> None:
        """Scratch that kernels are faster with, where its size was left open and memory allows."""
        if self.workspace_bytes is None and need > self._scratch:
            try:
                self._grow(need)
            except ResourceError:
                pass  # slower kernels do without

    def _grow(self, scratch: int) -> None:
        self.synchronize()
        handle = self._create(scratch)
        with self._lock:  # what the smaller one made stays valid: children keep it
            lib.qk_context_destroy(self._handle)
            self._handle, self._scratch = handle, scratch

    def call(self, function: Any, *arguments: Any) -> None:
        """A function whose first argument is the context; raises with the context's sentence."""
        with self._lock:
            status = function(self._handle, *arguments)
            if status:
                raise self.explain(status)

    def call_for(self, function: Any, *arguments: Any) -> None:
        """A function of a child (a tensor, a GRU), which this context explains."""
        with self._lock:
            status = function(*arguments)
            if status:
                raise self.explain(status)

    def explain(self, status: int) -> Error:
        """The exception for the call that has just failed; the caller holds the lock."""
        if self._handle is None:
            return refuse("STATE", "context: is closed")
        return make_error(status, lib.qk_context_error(self._handle))

    def _describe(self) -> Any:
        info = STRUCTS["qk_context_info"](struct_size=ctypes.sizeof(STRUCTS["qk_context_info"]))
        self.call(lib.qk_context_describe, ctypes.byref(info))
        return info

    @property
    def threads(self) -> int:
        """Threads that work, the caller's included: fewer than asked for if there were no more."""
        return int(self._describe().thread_count)

    @property
    def instruction_sets(self) -> tuple[str, ...]:
        """What kernels are chosen from, as in ("generic", "avx2"); nothing on CUDA."""
        bits = self._describe().instruction_sets
        return tuple(name for name, bit in sorted(INSTRUCTION_SETS.items(), key=lambda i: i[1])
                     if bits & bit)

    @property
    def stream(self) -> int | None:
        """The cudaStream_t that calls are queued on; None: the default stream."""
        return self._stream

    def set_stream(self, stream: int | None) -> None:
        """Queues later calls on another stream; joining the two is the caller's work."""
        stream = _checked_stream(stream)
        self.call(lib.qk_context_set_stream, stream)
        self._stream, self._fixed_stream = stream, True

    def follow_stream(self, stream: int | None) -> None:
        """The caller's current stream, unless the context was given one of its own."""
        if not self._fixed_stream and stream != self._stream:
            self.call(lib.qk_context_set_stream, stream)
            self._stream = stream

    def synchronize(self) -> None:
        """Waits for all queued work and raises what it ran into."""
        self.call(lib.qk_context_synchronize)

    def close(self) -> None:
        """Gives the handle back; tensors made with it live on until they are closed."""
        if self._process == os.getpid():
            with self._lock:
                super().close()
        else:  # a forked child collects its parent's other threads while locks are as they were
            super().close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()

    def __enter__(self) -> Context:
        _stack().append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        stack = _stack()  # the last entry: a context may be entered within itself
        del stack[len(stack) - 1 - stack[::-1].index(self)]

    def __repr__(self) -> str:
        return f"<qk.Context {self.device}:{self.index}>"


_contexts: weakref.WeakSet[Context] = weakref.WeakSet()


def _after_fork() -> None:
    """In the child: the calls that other threads were in never end, and nor do their locks."""
    for context in list(_contexts):
        context._lock, context._process = threading.Lock(), os.getpid()


os.register_at_fork(after_in_child=_after_fork)


def _checked_stream(stream: int | None) -> int | None:
    return None if stream is None else integer(stream, "stream", 0, SIZE_MAX)


def _isa_bits(given: str | Iterable[str] | None) -> int:
    """The mask of these sets and of those that they extend; None: 0, all there are."""
    bits = 0
    for name in [given] if isinstance(given, str) else given or ():
        if name not in INSTRUCTION_SETS:
            raise refuse("ARGUMENT", f"instruction_sets: is {name!r}, accepted are "
                         + ", ".join(INSTRUCTION_SETS))
        bits |= INSTRUCTION_SETS["generic"]
        extended: str | None = name
        while extended is not None:
            bits |= INSTRUCTION_SETS[extended]
            extended = _EXTENDED.get(extended, "avx512" if "avx512_" in extended else None)
    return bits


def _trace_callback(trace: Callable[[Trace], object]) -> Any:
    def tell(_user: Any, call: Any) -> None:
        told = call.contents
        count = {"multiply": 3, "gru_run": 4}.get(told.operation.decode(), 2)
        trace(Trace(told.operation.decode(), told.kernel.decode(), tuple(told.shape[:count]),
                    told.seconds, told.status))

    return _TRACE(tell)


def _stack() -> list[Context]:
    if not hasattr(_current, "stack"):
        _current.stack, _current.defaults = [], {}
    return _current.stack  # type: ignore[no-any-return]


def current_context(device: str = "cpu", index: int = 0) -> Context:
    """The innermost `with` context of the device, else this thread's own for it."""
    if type(index) is not int:  # 0.0 would find what 0 does
        index = integer(index, "index", 0, INT32_MAX)
    for context in reversed(_stack()):
        if context.device == device and context.index == index:
            return context
    context = _current.defaults.get((device, index))
    if context is None or context._handle is None:
        context = _current.defaults[device, index] = Context(device, index)
    return context


def workspace(context: Context, function: Any, *arguments: Any) -> int:
    """Bytes, of a function that ends in `size_t *bytes`."""
    out = ctypes.c_size_t()
    context.call(function, *arguments, ctypes.byref(out))
    return out.value


def device_count(device: str = "cpu") -> int:
    """How many devices of a kind there are; 0 where this build has none."""
    if device not in DEVICES:
        raise refuse("ARGUMENT", f"device: is {device!r}, accepted are {', '.join(DEVICES)}")
    count = ctypes.c_int32()
    status = lib.qk_device_count(DEVICES[device], ctypes.byref(count))
    if status:
        raise make_error(status)
    return count.value


def version() -> str:
    """Of the library: "0.1.0"."""
    number = lib.qk_version()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def build_info() -> str:
    """Backends, architectures and compiler of the library, for bug reports."""
    return lib.qk_build_info().decode()  # type: ignore[no-any-return]
