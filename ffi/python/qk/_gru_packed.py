"""torch's PackedSequence: padded for a call, and its results packed as it was."""
from __future__ import annotations

import sys
from typing import Any


def is_packed(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.nn.utils.rnn.PackedSequence)


def unpack(x: Any, h0: Any) -> tuple[Any, Any, Any]:
    """x [t,b,c] and the lengths [b], the longest first, as it is packed, and h0 in that order."""
    rnn = sys.modules["torch"].nn.utils.rnn
    steps, lengths = rnn.pad_packed_sequence(rnn.PackedSequence(x.data, x.batch_sizes))
    return steps, lengths, _reorder(h0, x.sorted_indices)


def pack(y: Any, h_n: Any, lengths: Any, x: Any) -> tuple[Any, Any]:
    """y [t,b,h] and h_n [layers,b,h] of what unpack() gave, as torch.nn.GRU returns them for x."""
    rnn = sys.modules["torch"].nn.utils.rnn
    data, batch_sizes, *_ = rnn.pack_padded_sequence(y, lengths)
    packed = rnn.PackedSequence(data, batch_sizes, x.sorted_indices, x.unsorted_indices)
    return packed, _reorder(h_n, x.unsorted_indices)


def _reorder(states: Any, order: Any) -> Any:
    """The second dimension in that order; what has another shape is refused by who reads it."""
    fits = order is not None and getattr(states, "ndim", 0) == 3 and states.shape[1] == len(order)
    return states[:, order.cpu()] if fits else states
