"""qk.torch beside older packages: what works there, and the sentence where it ends.

Before a release, with the oldest PyTorch that it takes (2.4) and transformers before 5.8 as well;
the sentences are tried with any. docs/testing.md has the command.
"""
import copy
import io
import subprocess
import sys

from common import qk, unittest

try:
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
import qk.torch

VERSION = tuple(map(int, transformers.__version__.split(".")[:2]))


def sentence(program):
    """The last line that a program says in a process of its own, which fails."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    return done.stderr.strip().splitlines()[-1]


class Sentences(unittest.TestCase):
    def test_transformers(self):
        start = "import transformers; transformers.__version__ = '5.7.3'; import qk.torch; "
        for use in ("qk.torch.QkConfig", "from qk.torch import QkConfig"):
            self.assertEqual(sentence(start + use), "ImportError: qk.torch.QkConfig: needs "
                             "transformers 5.8 or newer, installed is 5.7.3")
        if VERSION < (5, 8):
            self.assertIn(f"needs transformers 5.8 or newer, installed is {VERSION[0]}.",
                          sentence("import qk.torch; qk.torch.QkConfig"))

    def test_pytorch(self):
        self.assertEqual(sentence("import torch; torch.__version__ = '2.3.1'; import qk.torch"),
                         "ImportError: qk.torch: needs PyTorch 2.4 or newer, installed is 2.3.1")


class Models(unittest.TestCase):
    """Of transformers, without its quantization method."""

    def test_replaced_in_place(self):
        torch.manual_seed(5)
        tokens = torch.arange(24).reshape(2, 12) * 7 % 96

        def make():
            return transformers.LlamaForCausalLM(transformers.LlamaConfig(
                vocab_size=96, hidden_size=128, intermediate_size=352, num_hidden_layers=2,
                num_attention_heads=4, num_key_value_heads=2)).eval()

        def logits(model):
            with torch.no_grad():
                return model(tokens).logits

        model = make()
        report = qk.torch.replace_linear(model, "nf4", nested=True)
        self.assertEqual((len(report.replaced), list(report.kept)), (14, ["lm_head"]))
        dense = copy.deepcopy(model)
        self.assertEqual(qk.torch.dequantize_linear(dense), 14)
        torch.testing.assert_close(logits(model), logits(dense), atol=1e-4, rtol=1e-4)
        stored, again = io.BytesIO(), make()
        torch.save(model.state_dict(), stored)
        stored.seek(0)
        qk.torch.replace_linear(again, "nf4", nested=True)
        again.load_state_dict(torch.load(stored, weights_only=True))
        self.assertTrue(torch.equal(logits(again), logits(model)))
        model.train()(tokens, labels=tokens).loss.backward()
        self.assertIsNotNone(model.model.embed_tokens.weight.grad)


if __name__ == "__main__":
    unittest.main()
