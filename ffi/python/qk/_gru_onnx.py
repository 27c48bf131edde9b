"""GRU nodes of ONNX models, as arrays in PyTorch's order of gates."""
from __future__ import annotations

import os
import warnings
from typing import Any, NamedTuple

import numpy as np

from ._abi import CONSTANTS
from ._errors import make_error, refuse
from ._gru_weights import Array, host_array, to_rzn

Arrays = tuple[Any, Any, Any, Any]
_USUAL = ["sigmoid", "tanh"]
_WAYS = {"forward": 1, "reverse": 1, "bidirectional": 2}


class Node(NamedTuple):
    sides: list[Arrays]  #: weights of each direction
    reset_after: bool  #: the product
    batch_first: bool
    reverse: bool  #: the only direction is the other one


def read_node(source: Any, name: str | None, given: dict[str, Any]) -> Node:
    """What a GRU node computes."""
    source = _opened(source)
    graph = getattr(source, "graph", None)
    node = source if graph is None else find_node(graph, name)
    if node.op_type != "GRU":
        raise refuse("ARGUMENT", f"source: is a {node.op_type} node, accepted is GRU")
    facts = _facts(node)
    inputs = [*node.input, "", "", "", "", "", ""][:6]
    ways = _WAYS[facts["direction"]]

    def array(place: int, label: str, rows: int | None, columns: int | None) -> Array:
        values = _array(graph, given, inputs[place], label)
        wanted = [ways, *(size for size in (rows, columns) if size is not None)]
        found = [*values.shape]
        if values.ndim != (2 if label == "B" else 3) or 0 in found or \
                any(a != b for a, b in zip(found, wanted)):
            raise refuse("SHAPE", f"source: {label} is {found}, must be "
                         f"{[*wanted, 'c'] if label == 'W' else wanted}")
        return values

    hidden = facts["hidden_size"] or (_array(graph, given, inputs[2], "R").shape or [0])[-1]
    w, r = array(1, "W", 3 * hidden, None), array(2, "R", 3 * hidden, hidden)
    b = array(3, "B", 6 * hidden, None) if inputs[3] else None
    sides = []
    for i in range(ways):
        halves = (None, None) if b is None else map(to_rzn, np.split(b[i], 2))
        sides.append((to_rzn(w[i]), to_rzn(r[i]), *halves))
    _warn_of_constants(graph, inputs)
    return Node(sides, facts["linear_before_reset"] == 1, facts["layout"] == 1,
                facts["direction"] == "reverse")


def _opened(source: Any) -> Any:
    import onnx

    if isinstance(source, (str, os.PathLike)):
        try:
            return onnx.load(os.fspath(source))
        except OSError:
            raise
        except Exception as error:  # of protobuf, or of onnx where another file is missing
            raise make_error(CONSTANTS["QK_ERROR_CORRUPT"],
                             f"source: onnx cannot read {os.fspath(source)!r}: {error}") from None
    if not isinstance(source, (onnx.ModelProto, onnx.NodeProto)):
        raise refuse("ARGUMENT", f"source: is a {type(source).__name__}, accepted are a path, an "
                     "onnx.ModelProto and an onnx.NodeProto")
    return source


def find_node(graph: Any, name: str | None) -> Any:
    """The only GRU node, or the one of that name."""
    every = [node for node in graph.node
             if node.op_type == "GRU" and node.domain in ("", "ai.onnx")]
    nodes = [node for node in every if name in (None, node.name)]
    if len(nodes) != 1:
        raise refuse("ARGUMENT", f"node: the model has {len(nodes)} GRU nodes"
                     + (f" of the name {name!r}" if name else "")
                     + f", must be one; their names: {[node.name for node in every]}")
    return nodes[0]


def _facts(node: Any) -> dict[str, Any]:
    """The node's attributes, if they are of a cell that qk has."""
    from onnx import helper

    found = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    facts = {"direction": found.get("direction", b"forward").decode(),
             **{name: found.get(name, 0) for name in ("hidden_size", "linear_before_reset",
                                                      "layout")}}
    for name, accepted in (("direction", _WAYS), ("linear_before_reset", (0, 1)),
                           ("layout", (0, 1))):
        if facts[name] not in accepted:
            raise refuse("ARGUMENT", f"source: has {name} {facts[name]!r}, accepted are "
                         f"{', '.join(map(str, accepted))}")
    if facts["hidden_size"] < 0:
        raise refuse("ARGUMENT", f"source: has hidden_size {facts['hidden_size']}, accepted are "
                     "sizes from 1")
    usual = _USUAL * _WAYS[facts["direction"]]
    activations = [part.decode() for part in found.get("activations", [])] or usual
    if [part.lower() for part in activations] != usual:
        raise refuse("ARGUMENT", f"source: has activations {activations}, accepted are Sigmoid and "
                     "Tanh for each direction")
    if "clip" in found:
        raise refuse("ARGUMENT", f"source: clips at {found['clip']}, accepted is no clip")
    return facts


def _array(graph: Any, given: dict[str, Any], name: str, label: str) -> Array:
    if not name:
        raise refuse("ARGUMENT", f"source: has no input {label}")
    if name in given:
        return host_array(given[name], f"weights[{name!r}]")
    constant = _constant(graph, name)
    if constant is None:
        raise refuse("ARGUMENT", f"source: {label} ({name!r}) is no initializer of the model; give "
                     f"it as weights={{{name!r}: array}}")
    return host_array(constant, f"source: {label}")


def _constant(graph: Any, name: str) -> Any:
    """The value of an initializer or a Constant node; None where it is something else."""
    from onnx import numpy_helper

    if graph is None:
        return None
    found = [tensor for tensor in graph.initializer if tensor.name == name]
    found += [attribute.t for node in graph.node if node.op_type == "Constant"
              and name in node.output for attribute in node.attribute if attribute.name == "value"]
    if not found:
        return None
    try:
        return numpy_helper.to_array(found[0])
    except Exception as error:  # of onnx: its values are in a file that is not here
        raise make_error(CONSTANTS["QK_ERROR_CORRUPT"],
                         f"source: onnx cannot read {name!r}: {error}") from None


def _warn_of_constants(graph: Any, inputs: list[str]) -> None:
    """A net takes lengths and h0 with its calls: the model's own are not kept."""
    for place, label, argument in ((4, "sequence_lens", "lengths"), (5, "initial_h", "h0")):
        values = _constant(graph, inputs[place]) if inputs[place] else None
        if values is not None and (label == "sequence_lens" or np.any(values)):
            warnings.warn(f"source: {label} ({inputs[place]!r}) is a constant of the model, which "
                          f"is not kept; give it to calls as {argument}", stacklevel=4)
