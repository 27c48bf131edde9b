"""GRU nodes of ONNX models, as arrays in PyTorch's order of gates."""
from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np

from ._errors import refuse
from ._gru_weights import to_rzn

Arrays = tuple[Any, Any, Any, Any]
_USUAL = [b"Sigmoid", b"Tanh"]


class Node(NamedTuple):
    sides: list[Arrays]  #: weights of each direction
    reset_after: bool  #: the product
    batch_first: bool
    reverse: bool  #: the only direction is the other one


def read_node(source: Any, name: str | None, given: dict[str, Any]) -> Node:
    """What a GRU node computes."""
    import onnx
    from onnx import numpy_helper

    if isinstance(source, (str, os.PathLike)):
        source = onnx.load(os.fspath(source))
    graph = getattr(source, "graph", None)
    node = source if graph is None else find_node(graph, name)
    if node.op_type != "GRU":
        raise refuse("ARGUMENT", f"source: is a {node.op_type} node, accepted is GRU")
    known = {} if graph is None else _constants(graph, numpy_helper)
    known.update({key: np.asarray(array, np.float32) for key, array in given.items()})
    facts = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    ways = _directions(facts)
    inputs = list(node.input) + [""] * 3
    w, r = (_array(known, inputs[i], label, ways) for i, label in ((1, "W"), (2, "R")))
    b = _array(known, inputs[3], "B", ways) if inputs[3] else None
    sides = []
    for i in range(ways):
        half = None if b is None else np.split(b[i], 2)
        sides.append((to_rzn(w[i]), to_rzn(r[i]), None if half is None else to_rzn(half[0]),
                      None if half is None else to_rzn(half[1])))
    return Node(sides, bool(facts.get("linear_before_reset", 0)), bool(facts.get("layout", 0)),
                facts.get("direction") == b"reverse")


def find_node(graph: Any, name: str | None) -> Any:
    nodes = [node for node in graph.node if node.op_type == "GRU"
             and name in (None, node.name)]
    if len(nodes) != 1:
        raise refuse("ARGUMENT", f"node: the model has {len(nodes)} GRU nodes"
                     + (f" of the name {name!r}" if name else "")
                     + ", must be one; their names: "
                     + repr([node.name for node in graph.node if node.op_type == "GRU"]))
    return nodes[0]


def _constants(graph: Any, numpy_helper: Any) -> dict[str, Any]:
    """Arrays of initializers and of Constant nodes."""
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            found[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return found


def _directions(facts: dict[str, Any]) -> int:
    """1 or 2, for what the integer cell has; anything else is refused by its name."""
    way = facts.get("direction", b"forward").decode()
    if way not in ("forward", "bidirectional", "reverse"):
        raise refuse("ARGUMENT", f"source: has direction {way!r}")
    ways = 2 if way == "bidirectional" else 1
    activations = list(facts.get("activations", _USUAL * ways))
    if activations != _USUAL * ways:
        raise refuse("ARGUMENT", "source: has activations "
                     f"{[name.decode() for name in activations]}, accepted are Sigmoid and Tanh")
    if facts.get("clip"):
        raise refuse("ARGUMENT", f"source: clips at {facts['clip']}, accepted is no clip")
    return ways


def _array(known: dict[str, Any], name: str, label: str, ways: int) -> Any:
    if name not in known:
        raise refuse("ARGUMENT", f"source: {label} ({name!r}) is no initializer of the model; give "
                     f"it as weights={{{name!r}: array}}")
    array = np.asarray(known[name], np.float32)
    if array.shape[0] != ways:
        raise refuse("SHAPE", f"source: {label} is {list(array.shape)}, must begin with {ways}")
    return array
