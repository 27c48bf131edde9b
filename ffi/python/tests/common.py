"""What the tests share. They run against whatever `qk` Python finds: the wheel, or a build."""
import os
import sys
import unittest
import unittest.mock
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]
GOLDEN = REPOSITORY / "tests" / "golden" / "data"
DENOISER = REPOSITORY / "examples" / "gru"
EXAMPLES = HERE.parent / "examples"

try:
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import qk  # noqa: E402

__all__ = ["DENOISER", "EXAMPLES", "GOLDEN", "REPOSITORY", "np", "os", "qk", "replicas",
           "torch", "unittest"]


def torch():
    """PyTorch, or the test skips and says so."""
    try:
        import torch as module
    except ImportError:
        raise unittest.SkipTest("PyTorch is not installed") from None
    return module


def replicas(module):
    """What torch.nn.DataParallel makes of a module for each of two GPUs, on the CPU."""
    import torch

    def copied(tensors, devices, detach=False):
        return [[tensor.clone() for tensor in tensors] for _ in devices]

    parallel = sys.modules["torch.nn.parallel.replicate"]
    with unittest.mock.patch.object(parallel, "_broadcast_coalesced_reshape", copied):
        return torch.nn.parallel.replicate(module, [0, 1])
