"""Integer GRUs inside ONNX models: a custom operator of ONNX Runtime, on CPUs, in Python.

    net = qk.StackedGRU.from_onnx(model).calibrate(x).freeze()
    qk.onnx.replace_gru(model, net)                       # onnx.ModelProto, in place
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(qk.onnx.library())
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)

Needs the packages onnx, onnxruntime and onnxruntime-extensions, which calls Python from the graph,
and which ends the process where that raises: what the operator refuses, as x of another width, is
told to the logger "qk" and gives NaN.
"""
from __future__ import annotations

import functools
import logging
from typing import Any

import numpy as np

from ._errors import refuse
from ._gru_onnx import find_node
from ._gru_stack import StackedGRU

Array = np.ndarray[Any, Any]
DOMAIN = "qk"


@functools.lru_cache(maxsize=64)
def _loaded(image: bytes) -> StackedGRU:
    return StackedGRU.load(image)


def _operator(x: Array, image: Array, lengths: Array, h0: Array) -> tuple[Array, Array]:
    try:
        return _run(x, image, lengths, h0)
    except Exception as error:  # onnxruntime-extensions has no way to hand it on
        logging.getLogger("qk").error("qk::GRU: %s", error)
        nothing = np.full((1, 1, 1, 1), np.nan, np.float32)
        return nothing, nothing[0]


def _run(x: Array, image: Array, lengths: Array, h0: Array) -> tuple[Array, Array]:
    """What ONNX's GRU gives; arrays without elements stand for inputs that the node has not."""
    net = _loaded(image.tobytes())
    ways = len(net.cells[0])
    if h0.size and net.batch_first:
        h0 = h0.transpose(1, 0, 2)
    y, h = net(x, h0 if h0.size else None, lengths if lengths.size else None)
    y = y.reshape(*y.shape[:2], ways, -1)
    if net.batch_first:
        return y, np.ascontiguousarray(h.transpose(1, 0, 2))
    return np.ascontiguousarray(y.transpose(0, 2, 1, 3)), h


@functools.lru_cache(maxsize=None)
def library() -> str:
    """Registers the operator qk::GRU; the path for SessionOptions.register_custom_ops_library."""
    from onnxruntime_extensions import PyCustomOpDef, get_library_path, onnx_op

    onnx_op(op_type=f"{DOMAIN}::GRU",
            inputs=[PyCustomOpDef.dt_float, PyCustomOpDef.dt_uint8, PyCustomOpDef.dt_int32,
                    PyCustomOpDef.dt_float],
            outputs=[PyCustomOpDef.dt_float, PyCustomOpDef.dt_float])(_operator)
    path: str = get_library_path()
    return path


def replace_gru(model: Any, net: StackedGRU, *, node: str | None = None) -> None:
    """Puts the integers of net in the place of a GRU node, of which it was made; in place.

    node: its name, where there are several. Inputs, outputs and their shapes stay as they are; the
    weights go, where nothing else uses them. A model without the operator does not run it.
    """
    import onnx

    graph = model.graph
    old = find_node(graph, node)
    if len(net.cells) != 1 or not net.is_frozen:
        raise refuse("ARGUMENT", "net: must be one layer, frozen; from_onnx, calibrate and freeze "
                     "make it")
    facts = {a.name: onnx.helper.get_attribute_value(a) for a in old.attribute}
    way = facts.get("direction", b"forward").decode()
    ways = "bidirectional" if len(net.cells[0]) == 2 else "reverse" if net.reverse else "forward"
    if (way, bool(facts.get("layout", 0))) != (ways, net.batch_first):
        raise refuse("ARGUMENT", f"net: is {ways}, batch_first {net.batch_first}; the node is "
                     f"{way}, layout {facts.get('layout', 0)}")
    inputs = [*old.input, "", "", "", ""][:6]
    names = {name for each in graph.node for name in (*each.input, *each.output)}
    names.update(value.name for value in (*graph.initializer, *graph.input, *graph.output))

    def free_name(what: str) -> str:
        name = f"{old.name or 'GRU'}/{what}"
        while name in names:
            name += "_"
        names.add(name)
        return name

    def constant(what: str, array: Array) -> str:
        name = free_name(what)
        graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        return name

    image = constant("integers", np.frombuffer(net.tobytes(), np.uint8))
    lengths = inputs[4] or constant("sequence_lens", np.zeros(0, np.int32))
    h0 = inputs[5] or constant("initial_h", np.zeros((0, 0, 0), np.float32))
    outputs = [name or free_name("unused") for name in [*old.output, ""][:2]]
    new = onnx.helper.make_node("GRU", [inputs[0], image, lengths, h0], outputs, name=old.name,
                                domain=DOMAIN)
    old.CopyFrom(new)
    _drop_unused(graph, inputs[1:4])
    if all(opset.domain != DOMAIN for opset in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))


def _drop_unused(graph: Any, names: list[str]) -> None:
    used = {name for each in graph.node for name in each.input}
    used.update(value.name for value in graph.output)
    for kept in [tensor for tensor in graph.initializer if tensor.name in names]:
        if kept.name not in used:
            graph.initializer.remove(kept)
