"""Slices and experts of a layer in several processes, over gloo. Before a release; PyTorch."""
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


def run(example, count, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={count}",
         "--standalone", EXAMPLES / example, *arguments], text=True, capture_output=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})


class Parallel(unittest.TestCase):
    def test_mlp_of_several_processes(self):
        for count, shares in ((2, ["(0, 448)", "(448, 896)"]),  # uneven: 14 groups
                              (4, ["(0, 192)", "(192, 448)", "(448, 640)", "(640, 896)"])):
            done = run("tensor_parallel.py", count, "8b")
            self.assertEqual(done.returncode, 0, done.stderr)
            for rank, columns in enumerate(shares):
                self.assertRegex(done.stdout, rf"rank {rank} of {count}: .* {re.escape(columns)}")

    def test_experts_of_several_processes(self):
        for count, arguments, shares in (
                (2, ("qwen3",), ["0 to 63", "64 to 127"]),
                (3, ("mixtral", "9"), ["0 to 1", "2 to 4", "5 to 7"])):
            done = run("expert_parallel.py", count, *arguments)
            self.assertEqual(done.returncode, 0, done.stderr)
            for rank, experts in enumerate(shares):
                self.assertRegex(done.stdout, rf"rank {rank} of {count}: experts {experts}, .* "
                                 "slots have the bits of one process")


if __name__ == "__main__":
    unittest.main()
