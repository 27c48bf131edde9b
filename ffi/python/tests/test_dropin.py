"""A transformers model whose linear layers are qk's says what it says with dequantized weights.

Needs PyTorch and transformers; run before a release. The model is a small Llama with random
weights of a fixed seed: nothing is downloaded.
"""
import sys

from common import qk, unittest

try:
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


def make_model():
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=128, intermediate_size=352, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
        initializer_range=0.3)
    return transformers.LlamaForCausalLM(config).eval()


class QkLinear(torch.nn.Module):
    """A torch.nn.Linear from the outside."""

    def __init__(self, weight, bias):
        super().__init__()
        self.layer = qk.Layer(weight, bias)

    def forward(self, x):
        return self.layer(x)


def replace(model, make):
    """Every Linear but the output head by make(linear)."""
    replaced = 0
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            parent = model.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], make(module))
            replaced += 1
    return replaced


def tokens_of(model, prompt):
    with torch.no_grad():
        return model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=48,
                              do_sample=False, pad_token_id=0)


class DropIn(unittest.TestCase):
    def check(self, packed, **options):
        weights = {}

        def dequantized(linear):
            weight = qk.quantize(linear.weight, **options)
            weights[len(weights)] = weight
            linear.weight.data = torch.from_numpy(weight.dequantize())
            return linear

        dense, quantized = make_model(), make_model()
        self.assertEqual(replace(dense, dequantized), 21)
        order = iter(weights.values())
        replace(quantized, lambda linear: QkLinear(
            next(order).repack() if packed else next(order), linear.bias))
        prompt = torch.randint(1, 512, (4, 9), generator=torch.Generator().manual_seed(7))
        expected, got = tokens_of(dense, prompt), tokens_of(quantized, prompt)
        self.assertEqual(expected.shape, (4, 57))
        self.assertGreater(len(expected[:, 9:].unique()), 20)  # it says something
        self.assertTrue(torch.equal(expected, got), f"{options}: other tokens")

    def test_nf4(self):
        self.check(False, format="nf4", group_size=64, nested=True)

    def test_nf4_packed(self):
        self.check(True, format="nf4", group_size=64)

    def test_int4_packed(self):
        self.check(True, format="int4", group_size=32, symmetric=False)

    def test_int8(self):
        self.check(False, format="int8", group_size=128)


if __name__ == "__main__":
    unittest.main()
