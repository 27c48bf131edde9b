"""Slices of a layer in several processes, over gloo. Before a release; needs PyTorch."""
import os
import re
import subprocess
import sys

from common import EXAMPLES, unittest

try:
    import torch  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


class Parallel(unittest.TestCase):
    def test_mlp_of_several_processes(self):
        for count, shares in ((2, ["(0, 448)", "(448, 896)"]),  # uneven: 14 groups
                              (4, ["(0, 192)", "(192, 448)", "(448, 640)", "(640, 896)"])):
            done = subprocess.run(
                [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={count}",
                 "--standalone", EXAMPLES / "tensor_parallel.py", "8b"], text=True,
                capture_output=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
            self.assertEqual(done.returncode, 0, done.stderr)
            for rank, columns in enumerate(shares):
                self.assertRegex(done.stdout, rf"rank {rank} of {count}: .* {re.escape(columns)}")


if __name__ == "__main__":
    unittest.main()
