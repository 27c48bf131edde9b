"""GPTQ and AWQ models as transformers loads them by GPTQModel: replaced, saved, read again.

Before a release; needs PyTorch, transformers and safetensors, and GPTQModel with optimum to run
the models. The files are packed here, from what the formats' pages say.
"""
import json
import os
import tempfile
from pathlib import Path

os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")  # its pools want two, whatever the machine has
from test_torch_models import llama, load_file, logits, package, qk, torch, transformers, unittest

from safetensors.torch import save_file

GROUP = 32
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
KINDS = {"gptq_v1": {"quant_method": "gptq", "checkpoint_format": "gptq"},
         "gptq_v2": {"quant_method": "gptq", "checkpoint_format": "gptq_v2"},
         "act_order": {"quant_method": "gptq", "checkpoint_format": "gptq", "desc_act": True},
         "awq": {"quant_method": "awq", "zero_point": True, "version": "gemm"}}


def words(codes, order=range(8)):
    """Eight codes of the last dimension as one int32."""
    codes = codes.unflatten(-1, (-1, 8)).long()
    word = sum(codes[..., column] << 4 * place for place, column in enumerate(order))
    return torch.where(word < 1 << 31, word, word - (1 << 32)).int()


def packed(kind, weight):
    """A layer's tensors by their last names, and what they mean [n,k]."""
    n, k = weight.shape
    group = torch.arange(k) // GROUP
    if kind == "act_order":
        group = group[torch.randperm(k)]
    codes = torch.randint(0, 16, (n, k))
    zeros = torch.randint(1, 16, (k // GROUP, n))
    scales = (torch.rand(k // GROUP, n) / 50 + 0.01).half()
    meaning = ((codes - zeros.T[:, group]) * scales.float().T[:, group])
    if kind == "awq":
        return {"qweight": words(codes.T, AWQ_ORDER), "qzeros": words(zeros, AWQ_ORDER),
                "scales": scales}, meaning
    stored = zeros if kind == "gptq_v2" else zeros - 1
    return {"qweight": words(codes).T, "qzeros": words(stored), "scales": scales,
            "g_idx": group.int()}, meaning


def write(kind, folder):
    """A small Llama of that kind; its weights by the names of modules."""
    model = llama().half()
    model.save_pretrained(folder)
    tensors, truth = load_file(f"{folder}/model.safetensors"), {}
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        module = name.removesuffix(".weight")
        parts, truth[module] = packed(kind, tensors.pop(name))
        tensors.update({f"{module}.{part}": value.contiguous() for part, value in parts.items()})
    save_file(tensors, f"{folder}/model.safetensors", {"format": "pt"})
    path = Path(folder, "config.json")
    method = {"bits": 4, "group_size": GROUP, "sym": False, "desc_act": False, **KINDS[kind]}
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": method}))
    return truth


class Packages(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)
        for name in ("gptqmodel", "optimum"):
            package(name)

    def load(self, kind, folder, gptq="gptq_torch"):
        config = transformers.AwqConfig(backend="torch_awq") if kind == "awq" \
            else transformers.GPTQConfig(bits=4, backend=gptq)
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float16, device_map="cpu", quantization_config=config).eval()

    def test_models_are_replaced_saved_and_read(self):
        for kind in KINDS:
            with self.subTest(kind), tempfile.TemporaryDirectory() as folder, \
                    tempfile.TemporaryDirectory() as small:
                truth = write(kind, folder)
                model = self.load(kind, folder)
                theirs = logits(model)
                report = qk.torch.replace_linear(model)
                self.assertEqual((report.replaced.keys(), list(report.kept)),
                                 (truth.keys(), ["lm_head"]))
                for name, weight in truth.items():
                    layer = model.get_submodule(name)
                    self.assertTrue(torch.equal(layer.dequantize(), weight), name)
                ours = logits(model)
                torch.testing.assert_close(ours, theirs, atol=0.03, rtol=0.03)
                model.save_pretrained(small)
                config = json.loads(Path(small, "config.json").read_text())
                self.assertEqual(config["quantization_config"]["quant_method"], "qk")
                again = transformers.AutoModelForCausalLM.from_pretrained(small).eval()
                self.assertTrue(torch.equal(logits(again), ours))

    def test_what_a_kernel_has_rearranged_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            write("gptq_v1", folder)
            model = self.load("gptq_v1", folder, gptq="gptq_torch_aten")
            before = logits(model)
            report = qk.torch.replace_linear(model)
            self.assertFalse(report.replaced)
            self.assertIn("replace the layer before it", str(report))
            self.assertTrue(torch.equal(logits(model), before))


class Modules(unittest.TestCase):
    """The same layers as modules of no package, by the attributes that packages give them."""

    def test_marks_of_zeros(self):
        cases = (("gptq_v1", {}),  # auto_gptq
                 ("gptq_v1", {"qzero_format": lambda: 1}),  # a kernel that takes them so
                 ("gptq_v1", {"qzero_format": lambda: 1, "REQUIRES_FORMAT_V2": True,
                              "format": "gptq"}),  # just packed
                 ("gptq_v2", {"qzero_format": lambda: 2, "REQUIRES_FORMAT_V2": True}),
                 ("gptq_v2", {"qzero_format": lambda: 1, "REQUIRES_FORMAT_V2": True}),
                 ("act_order", {}), ("awq", {"w_bit": 4}))
        for kind, attributes in cases:
            parts, truth = packed(kind, torch.empty(64, 128))
            module = torch.nn.Module()
            module.out_features, module.in_features, module.group_size = 64, 128, GROUP
            module.__dict__.update(attributes)
            for name, value in parts.items():
                module.register_buffer(name, value)
            model = torch.nn.ModuleDict({"layer": module})
            with self.subTest(kind, **{name: str(value) for name, value in attributes.items()}):
                self.assertEqual(qk.torch.replace_linear(model).kept, {})
                self.assertTrue(torch.equal(model["layer"].dequantize(), truth))


if __name__ == "__main__":
    unittest.main()
