"""Models that the packages themselves made go through qk and keep their weights' bits.

    QK_COMMAND=PATH/TO/qk python3 test_packages.py [Packages.test_MAKER]

makers/ has a module for each package:

    KINDS          what the package writes, each with the format that qk should see, or None
    models(kind)   the small models it is asked to write: dense, of experts, tied, with biases
    make(source, folder, kind)   has the package quantize and save the model, in shards; returns
                   the weights as the package itself dequantizes them
    path_of(folder)   the file that is the model, where the folder is not
    TURNED         experts of the truth are [e,k,n]
    SAME_MODEL     transformers loads what the package wrote to the weights that it loads of qk's

qk inspects every layer, verifies and dequantizes the model and multiplies by its layers, from the
file and repacked; transformers loads what qk wrote. Needs torch, transformers and accelerate, each
package for its own part (tests/golden/requirements.txt) and, for GGUF, llama.cpp, so it runs before
a release and not in CI. What is not there is a skip that says so.
"""
import importlib
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from small_models import load_model, run_qk, same_bits, save_model, tensors_of, torch, \
    transformers, TOKENS

import numpy as np

try:
    import qk  # the Python binding, on this build's libraries
except (ImportError, OSError):
    qk = None

MAKERS = ("compressed", "ordered", "bnb", "gptq", "awq", "modelopt_export", "fp8", "gpt_oss",
          "deepseek", "llama_cpp")
ULP = {torch.float32: 0.0, torch.float16: 2.0 ** -11, torch.bfloat16: 2.0 ** -8}


def gamma(count):
    return count * 2.0 ** -24 / (1 - count * 2.0 ** -24)


def bound(x, weight, step):
    """docs/formats.md, "Error bound", whatever the order of the sum, with the rounding of the
    package's weight to its type."""
    rows, k = x.shape
    count = -(-k // 16) + 6 if rows <= 2 else min(k, 128) + -(-k // 128) + 2
    size = np.abs(x) @ np.abs(weight).T
    integers = 1.01 * 2.0 ** -23 * np.abs(x).max() * np.abs(weight).sum(1)
    underflow = 2.0 ** -149 * (k + np.abs(x).sum())
    return (gamma(count) + step) * (size + integers) + integers + underflow


def layer_of(tensor):
    return tensor.removesuffix(".weight")


def rows_of(weight, turned):
    """Experts as qk's layers have them, their rows one after another; turned: stored [E,k,n]."""
    weight = weight.transpose(1, 2) if turned else weight
    return weight.reshape(-1, weight.shape[-1])


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)

    def source(self, model):
        source = self.folder / model
        if not source.exists():
            save_model(model, source, torch.bfloat16)
        return source

    def every_kind(self, maker):
        try:
            module = importlib.import_module(f"makers.{maker}")
        except ImportError as error:
            self.skipTest(str(error))
        for kind, (form, *_) in module.KINDS.items():
            for model in module.models(kind):
                with self.subTest(kind=kind, model=model):
                    made = self.folder / f"{model}-{kind}"
                    truth = module.make(self.source(model), made, kind)
                    self.goes_through(made, form, truth, module)
                    shutil.rmtree(made)

    def goes_through(self, folder, form, truth, module):
        """One model, whose quantized layers are those of the truth and no others."""
        made = module.path_of(folder) if hasattr(module, "path_of") else folder
        rows = {name: rows_of(weight, hasattr(module, "TURNED")) for name, weight in truth.items()}
        layers = {row["name"]: row for row in run_qk("inspect", made)["layers"]}
        quantized = {name for name, row in layers.items() if row["dialect"] != "dense"}
        self.assertTrue(truth)
        self.assertEqual(quantized, {layer_of(name) for name in truth})
        for name, weight in rows.items():
            row = layers[layer_of(name)]
            self.assertTrue(row["loadable"], row)
            self.assertEqual(tuple(row["shape"]), tuple(weight.shape), row)
            self.assertIn(row["format"], form or row["format"], row)
        self.assertIs(run_qk("verify", made)["sound"], True)
        self.keeps_the_bits(made, truth, module)
        self.multiplies(made, rows)
        print(f"{folder.name:36} {len(truth):3} layers, every bit", flush=True)

    def keeps_the_bits(self, made, truth, module):
        twin = self.folder / f"{made.stem}-twin"
        if made.suffix == ".gguf":
            twin.mkdir()
            run_qk("dequantize", made, twin / "model.safetensors", "--dtype", "f32")
        else:
            run_qk("dequantize", made, twin)
        found = tensors_of(twin)
        for name, expected in truth.items():
            self.assertTrue(same_bits(found[name], expected), f"{made} {name}")
            left = {key for key in found if key.startswith(f"{layer_of(name)}.")}
            self.assertLessEqual(left, {name, f"{layer_of(name)}.bias"})
        if made.suffix != ".gguf":
            model = load_model(twin, dtype=torch.bfloat16)
            with torch.no_grad():
                self.assertTrue(torch.isfinite(model(TOKENS).logits).all())
            if hasattr(module, "SAME_MODEL"):
                own = load_model(made, dtype=torch.bfloat16).state_dict()
                for name, expected in model.state_dict().items():
                    self.assertTrue(torch.equal(own[name].double(), expected.double()), name)
        shutil.rmtree(twin)

    def multiplies(self, made, rows):
        """Every layer, as it lies in the file and repacked, one row of x and three."""
        first = layer_of(next(iter(rows)))
        for more in ([], ["--packed", "--rows", 3]):
            run_qk("multiply", made, first, "--repeat", 1, *more)
        if qk is None:
            self.skipTest("the Python binding is not there: only qk multiply has multiplied")
        random = np.random.default_rng(5)
        checkpoint = qk.load(made)
        for name, expected in rows.items():
            stored = checkpoint[layer_of(name)].weight
            weight = expected.double().numpy()
            x = random.standard_normal((3, weight.shape[1])).astype(np.float32)
            exact = x.astype(np.float64) @ weight.T
            for own in (stored, stored.repack("packed")):
                for count in (1, 3):
                    limit = bound(x[:count].astype(np.float64), weight, ULP[expected.dtype])
                    away = np.abs(qk.linear(x[:count], own) - exact[:count])
                    self.assertTrue((away <= limit).all(), f"{made} {name} {own.layout} {count}")


for maker_name in MAKERS:
    def test(self, maker=maker_name):
        self.every_kind(maker)
    setattr(Packages, f"test_{maker_name}", test)


def each_on_its_own():
    """A process for each package: some of them change transformers for all that comes after."""
    codes = [subprocess.run([sys.executable, __file__, f"Packages.test_{maker}"],
                            check=False).returncode for maker in MAKERS]
    return max(codes, key=abs)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(each_on_its_own())
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    transformers.logging.set_verbosity_error()
    unittest.main(verbosity=2)  # with the reason of each skip
