"""torch's tensors by their addresses: its own DLPack export takes 30 us on a GPU.

An address has no history. Where torch knows more of a tensor than its values (a gradient, a trace,
a batch of vmap), the call is refused: what qk computed would be missing there.
"""
from __future__ import annotations

import functools
import sys
from typing import Any

from ._errors import CallError, refuse

_plain: dict[type, bool] = {}  # types of tensors, as they are met


def is_tensor(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def is_proxy(array: Any) -> bool:
    """torch.fx gives a function these instead of tensors."""
    return type(array).__module__.startswith("torch.fx.")


def detached(array: Any) -> Any:
    """A tensor for its values alone, where they are copied; other arrays as they are."""
    return array.detach() if is_tensor(array) else array


def host_floats(tensor: Any, name: str) -> Any:
    """The values as f32 in the host's memory, from any device that has values."""
    tensor = tensor.detach()
    if tensor.is_meta:
        device_of(tensor, name)  # refuses
    if tensor.is_complex():
        raise refuse("FORMAT", f"{name}: is {tensor.dtype}, accepted are real numbers")
    tensor = tensor.cpu().float()
    require_values(tensor, name)
    address_of(tensor, name)  # refuses a wrapper of torch.func
    return tensor


def has_gradient(tensor: Any) -> bool:
    """Would torch's own operations on it record themselves?"""
    return bool(tensor.requires_grad) and bool(sys.modules["torch"].is_grad_enabled())


def _is_plain(torch: Any, kind: type) -> bool:
    """A subclass with a dispatch of its own says what operations mean, and often has no memory."""
    plain = _plain.get(kind)
    if plain is None:
        own = getattr(kind, "__torch_dispatch__", None)
        plain = _plain[kind] = own is getattr(torch.Tensor, "__torch_dispatch__", None)
    return plain


@functools.lru_cache(maxsize=2)
def _questions(torch: Any) -> tuple[Any, Any]:
    """Is a trace running, and how many modes are? A torch without the function has neither."""
    def never() -> int:
        return 0

    return (getattr(torch.jit, "is_tracing", never),
            getattr(torch._C, "_len_torch_dispatch_stack", never))


def _recorder(torch: Any, tensor: Any) -> str | None:
    """Who is watching operations now and would miss ours; None in ordinary programs."""
    is_tracing, mode_count = _questions(torch)
    if is_tracing():
        return "torch.jit.trace"
    for i in range(mode_count()):
        mode = type(torch._C._get_dispatch_stack_at(i)).__name__
        if mode in ("ProxyTorchDispatchMode", "FakeTensorMode", "FunctionalTensorMode"):
            return mode
    forward = torch.autograd.forward_ad
    level = getattr(forward, "_current_level", -1)
    if level >= 0 and forward.unpack_dual(tensor).tangent is not None:
        return "torch.autograd.forward_ad"
    return None


def device_of(tensor: Any, name: str) -> tuple[str, int]:
    """("cuda", 0); the properties are cheap to read, device.type is not."""
    if tensor.is_cpu:
        return "cpu", 0
    if tensor.is_cuda:
        return "cuda", tensor.device.index or 0
    raise refuse("ARGUMENT", f"{name}: is on the device {tensor.device}, accepted are cpu and cuda")


def require_values(tensor: Any, name: str) -> None:
    """Refuses what is more than its values, or has none."""
    torch = sys.modules["torch"]
    if has_gradient(tensor):
        raise refuse("ARGUMENT", f"{name}: requires gradients, which qk does not compute; call "
                     f"under torch.no_grad(), or give {name}.detach()")
    if not _is_plain(torch, type(tensor)):
        raise refuse("ARGUMENT", f"{name}: is a {type(tensor).__name__}, accepted are plain "
                     "tensors with values in memory")
    if tensor.layout is not torch.strided or tensor.is_nested:
        layout = "nested" if tensor.is_nested else str(tensor.layout)
        raise refuse("ARGUMENT", f"{name}: has the layout {layout}, accepted is torch.strided")
    recorder = _recorder(torch, tensor)
    if recorder is not None:
        raise refuse("ARGUMENT", f"{name}: {recorder} is recording, and qk's work would be "
                     "missing from its record; call qk outside of it")


def address_of(tensor: Any, name: str) -> int:
    """Where its elements are stored; 0 where it has none."""
    try:
        address = int(tensor.data_ptr())
    except RuntimeError:
        address = 0  # a wrapper of torch.func: vmap, grad, jvp
    if address == 0 and tensor.numel():
        raise _no_memory(tensor, name)
    return address


def _no_memory(tensor: Any, name: str) -> CallError:
    return refuse("ARGUMENT", f"{name}: is a {type(tensor).__name__} without memory of its own, as "
                  "transformations of torch.func make them; accepted are tensors with values")
