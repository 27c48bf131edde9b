"""What the tests share. They run against whatever `qk` Python finds: the wheel, or a build."""
import os
import sys
import unittest
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

__all__ = ["DENOISER", "EXAMPLES", "GOLDEN", "REPOSITORY", "np", "os", "qk", "torch", "unittest"]


def torch():
    """PyTorch, or the test skips and says so."""
    try:
        import torch as module
    except ImportError:
        raise unittest.SkipTest("PyTorch is not installed") from None
    return module
