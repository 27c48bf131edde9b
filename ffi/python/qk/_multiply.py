"""Products as data: lists that run as one call, and what a product would run as."""
from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any, NamedTuple

from ._abi import CONSTANTS, STRUCTS, lib
from ._checks import INT32_MAX
from ._context import Context, workspace
from ._errors import refuse
from ._linear import Operands, operands

_PRODUCT, _PLAN = STRUCTS["qk_product"], STRUCTS["qk_plan"]


class Product(NamedTuple):
    """What linear(x, w, bias, out=out) computes, as data."""

    x: Any
    w: Any
    bias: Any = None
    out: Any = None
    transposed: bool = False  #: x . w instead: x [..., n], bias [k], a result [..., k]
    accumulate: bool = False  #: adds to what out holds, rounded once


class Plan(NamedTuple):
    """What a product would run as, and why."""

    kernel: str  #: its name, which may change between versions
    batch: tuple[int, int | None]  #: first and last m with the same bits of a row; None: no end
    workspace_bytes: int  #: that the kernel needs
    reason: str  #: why not a faster kernel; "" for the fastest


def _raw(o: Operands, product: Product) -> Any:
    flags = (CONSTANTS["QK_PRODUCT_TRANSPOSED"] * bool(product.transposed)
             | CONSTANTS["QK_PRODUCT_ACCUMULATE"] * bool(product.accumulate))
    return _PRODUCT(struct_size=ctypes.sizeof(_PRODUCT), flags=flags, x=o.x.handle, w=o.w.handle,
                    bias=None if o.bias is None else o.bias.handle, y=o.y.handle)


def multiply(products: Iterable[Product | tuple[Any, ...]]) -> list[Any]:
    """Runs products in order as one call; their y's, each as linear() gives it.

    A product is a Product or a tuple (x, w), (x, w, bias) or (x, w, bias, out). The out of one may
    be the x of a later one. All are checked before the first runs, and errors name the product.
    """
    given = [_product(i, product) for i, product in enumerate(products)]
    made = [operands(*product[:5]) for product in given]
    if not made:
        return []
    context = made[0].context
    for i, each in enumerate(made):
        if each.context is not context:
            raise refuse("DEVICE_MIX", f"products[{i}]: is on {each.context!r}, products[0] on "
                         f"{context!r}")
    array = (_PRODUCT * len(made))(*map(_raw, made, given))
    _run(context, array)
    return [o.result for o in made]


def _product(index: int, given: Any) -> Product:
    if not isinstance(given, tuple) or not 2 <= len(given) <= (6 if type(given) is Product else 4):
        raise refuse("ARGUMENT", f"products[{index}]: is {type(given).__name__}, accepted are "
                     "qk.Product and tuples (x, w[, bias[, out]])")
    product = Product(*given)
    if product.accumulate and product.out is None:
        raise refuse("ARGUMENT", f"products[{index}]: accumulates, and has no out to add to")
    return product


def _run(context: Context, array: Any) -> None:
    def need() -> int:
        return workspace(context, lib.qk_multiply_workspace, array, len(array))

    if context.device == "cuda" and context.workspace_bytes is None:
        context.grow_for_speed(need())
    context.call_growing(need, lib.qk_multiply, array, len(array))


def explain(x: Any, w: Any, bias: Any = None, *, out: Any = None) -> Plan:
    """What linear(x, w, bias, out=out) would run as; nothing is multiplied.

    In a context that may grow, with the workspace that it would grow to.
    """
    o = operands(x, w, bias, out)
    context, product = o.context, _raw(o, Product(x, w))
    plan = _PLAN(struct_size=ctypes.sizeof(_PLAN))
    pointers = ctypes.byref(product), ctypes.byref(plan)

    def need() -> int:
        return workspace(context, lib.qk_multiply_workspace, ctypes.byref(product), 1)

    if context.device == "cuda" and context.workspace_bytes is None:
        context.grow_for_speed(need())
    context.call_growing(need, lib.qk_explain, *pointers)
    last = None if plan.batch_last == INT32_MAX else plan.batch_last
    return Plan(plan.kernel.decode(), (plan.batch_first, last), plan.workspace_bytes,
                plan.reason.decode())
