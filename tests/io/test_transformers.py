"""What qk quantize, convert and dequantize write is loaded by transformers, and computes the same.

    QK_COMMAND=PATH/TO/qk python3 test_transformers.py

Needs torch, transformers, accelerate, bitsandbytes and compressed-tensors, so it runs before a
release and not in CI. Models are small, of random weights of a fixed seed: nothing is downloaded.
"""
import json
import pathlib
import sys
import tempfile
import unittest

from safetensors.torch import load_file, save_file

from small_models import (load_model, logits_of, run_qk, save_model, tensors_of, torch,
                          transformers)

try:
    import accelerate  # noqa: F401  (bitsandbytes needs it inside transformers)
    import bitsandbytes
    import compressed_tensors  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

# On processors with AVX512-BF16 bitsandbytes would multiply in bf16: weights are compared here.
bitsandbytes.nn.modules.has_avx512bf16 = lambda: False
BOUND = 1e-3  # of the largest logit
MODELS = ("llama", "llama_tied", "qwen2_tied", "qwen3", "qwen3_tied", "gemma", "qwen3_moe",
          "qwen2_moe", "mixtral", "gpt_oss")
DIALECTS = {
    "nf4": ["--format", "nf4"],
    "nf4_nested": ["--format", "nf4", "--nested", "--block", "128"],
    "fp4": ["--format", "fp4"],
    "fp4_nested": ["--format", "fp4", "--nested"],
    "int4": ["--format", "int4", "--group", "32"],
    "int4_asymmetric": ["--format", "int4", "--group", "64", "--asymmetric"],
    "int4_row": ["--format", "int4", "--group", "row"],
}
# transformers reads no zero points and no global scales of experts, and qk says so.
OF_EXPERTS = ("qwen3_moe", "qwen2_moe", "mixtral")
REFUSED = [(name, "int4_asymmetric") for name in OF_EXPERTS]


def loading(dialect):
    """compressed-tensors 0.20 expects zero points of another shape than it stores, unless it
    dequantizes them at loading."""
    if "asymmetric" not in dialect:
        return {}
    return {"quantization_config": transformers.CompressedTensorsConfig(dequantize=True)}


def distance(found, expected):
    if not torch.isfinite(found).all():
        return float("inf")
    return ((found - expected).abs().max() / expected.abs().max()).item()


class RoundTrip(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        for name in MODELS:
            save_model(name, cls.folder / name, torch.float32, max_shard_size="300KB")

    def test_every_dialect_of_every_model(self):
        worst = 0.0
        for name in MODELS:
            dense = logits_of(self.folder / name)
            for dialect, options in DIALECTS.items():
                out, twin = (self.folder / f"{name}-{dialect}{end}" for end in ("", "-dense"))
                if (name, dialect) in REFUSED:
                    continue
                with self.subTest(model=name, dialect=dialect):
                    done = run_qk("quantize", self.folder / name, out, *options)
                    run_qk("dequantize", out, twin)
                    expected = logits_of(twin)
                    self.assertGreater(distance(expected, dense), BOUND, "nothing was rounded")
                    found = distance(logits_of(out, **loading(dialect)), expected)
                    worst = max(worst, found)
                    print(f"{name:11} {dialect:16} {done['quantized_layers']:3} layers, "
                          f"{found:.1e} of the largest logit", flush=True)
                    self.assertLess(found, BOUND)
        print(f"worst: {worst:.1e}")

    def test_small_scales_and_int8(self):
        """The very same logits; of FP4 in bf16, to which alone compressed-tensors decodes it."""
        for name in ("llama", "qwen2_tied", *OF_EXPERTS):
            for form in ("int8", "mxfp4", "nvfp4")[:2 if name in OF_EXPERTS else 3]:
                dtype, word = ((torch.float32, "f32") if form == "int8"
                               else (torch.bfloat16, "bf16"))
                out, twin = (self.folder / f"{name}-{form}{end}" for end in ("", "-dense"))
                run_qk("quantize", self.folder / name, out, "--format", form, "--force")
                run_qk("dequantize", out, twin, "--dtype", word, "--force")
                with self.subTest(model=name, form=form):
                    found, expected = (logits_of(folder, dtype=dtype) for folder in (out, twin))
                    self.assertEqual(distance(found, expected), 0)

    def test_experts_of_gpt_oss(self):
        """In its own MXFP4, from the transposed experts that transformers saves."""
        dense, out, twin = (self.folder / f"gpt_oss-{end}" for end in ("bf16", "own", "own-dense"))
        save_model("gpt_oss", dense, torch.bfloat16)
        done = run_qk("quantize", dense, out, "--format", "mxfp4", "--dialect", "gpt-oss")
        self.assertEqual(done["quantized_layers"], 4)
        run_qk("dequantize", out, twin)
        found, expected, before = (logits_of(folder, dtype=torch.bfloat16)
                                   for folder in (out, twin, dense))
        self.assertEqual(distance(found, expected), 0)
        self.assertGreater(distance(found, before), BOUND, "nothing was rounded")

    def test_experts_of_llama4(self):
        """Linear layers in quantized models, where dense ones are transposed in two tensors."""
        dense, out, twin = (self.folder / f"llama4{end}" for end in ("", "-out", "-twin"))
        save_model("llama4", dense, torch.float32)
        before = logits_of(dense)
        for dialect in ("nf4", "nf4_nested", "fp4", "int4", "int4_row", "int4_asymmetric"):
            with self.subTest(dialect=dialect):
                done = run_qk("quantize", dense, out, *DIALECTS[dialect], "--force")
                self.assertEqual(done["quantized_layers"], 2 * (4 + 3 + 4 * 3))
                run_qk("dequantize", out, twin, "--force")
                decoded = tensors_of(twin)
                for layer in range(2):
                    name = f"model.layers.{layer}.feed_forward.experts"
                    gate, up, down = (torch.stack([
                        decoded.pop(f"{name}.{e}.{part}_proj.weight").t() for e in range(4)])
                        for part in ("gate", "up", "down"))
                    decoded[f"{name}.gate_up_proj"] = torch.cat((gate, up), 2).contiguous()
                    decoded[f"{name}.down_proj"] = down.contiguous()
                save_file(decoded, twin / "model.safetensors", metadata={"format": "pt"})
                found, expected = logits_of(out, **loading(dialect)), logits_of(twin)
                print(f"llama4      {dialect:16} {distance(found, expected):.1e}", flush=True)
                self.assertLess(distance(found, expected), BOUND)
                self.assertGreater(distance(found, before), BOUND, "nothing was rounded")

    def test_converted(self):
        for name in ("llama", "qwen2_tied", "gemma"):
            first = self.folder / f"{name}-first"
            run_qk("quantize", self.folder / name, first, *DIALECTS["int4"], "--scales", "f16")
            source = first
            for word in ("gptq-v2", "awq", "gptq", "awq-gemv", "compressed-tensors"):
                out = self.folder / f"{name}-{word}"
                run_qk("convert", source, out, "--to", word)
                source = out
            for folder, values in ((first, "a"), (source, "b")):
                run_qk("dequantize", folder, self.folder / f"{name}-{values}")
            same = [(self.folder / f"{name}-{values}/model.safetensors").read_bytes()
                    for values in "ab"]
            self.assertEqual(*same)
            # transformers multiplies codes and scales in f32: so does the twin.
            run_qk("dequantize", first, self.folder / f"{name}-c", "--dtype", "f32")
            found = distance(logits_of(source), logits_of(self.folder / f"{name}-c"))
            print(f"{name:11} through 5 dialects {found:.1e} of the largest logit", flush=True)
            self.assertLess(found, BOUND)

    def test_experts_converted_from_gguf(self):
        """Fused experts, as transformers holds them: layers an expert when they leave GGUF."""
        dense, file, out, twin = (self.folder / f"fused{end}" for end in
                                  ("", ".gguf", "-out", "-twin"))
        config = transformers.AutoConfig.from_pretrained(self.folder / "qwen3_moe")
        model = transformers.AutoModelForCausalLM.from_pretrained(
            self.folder / "qwen3_moe", dtype=torch.float32)
        dense.mkdir()
        config.save_pretrained(dense)
        save_file({name: value.contiguous() for name, value in model.state_dict().items()},
                  dense / "model.safetensors", metadata={"format": "pt"})
        excludes = [word for name in ("*embed*", "lm_head", "*.gate")
                    for word in ("--exclude", name)]
        run_qk("quantize", dense, file, "--format", "q8_0", *excludes)
        run_qk("convert", file, out, "--to", "compressed-tensors")
        # A GGUF file knows no model: the configuration lacks what the directory's has.
        section = json.loads((out / "config.json").read_text())["quantization_config"]
        whole = json.loads((dense / "config.json").read_text())
        (out / "config.json").write_text(json.dumps({**whole, "quantization_config": section}))
        run_qk("dequantize", out, twin, "--dtype", "f32")
        # transformers decodes in the scales' type, which are f16 in GGUF.
        found, expected = (load_model(folder).state_dict() for folder in (out, twin))
        # The pair as the GGUF file has it says whether gate and up kept their places.
        run_qk("dequantize", file, self.folder / "fused.safetensors", "--dtype", "f32")
        pairs = load_file(self.folder / "fused.safetensors")
        joined = [name for name in found if ".experts." in name]
        self.assertEqual(len(joined), 2 * 2)
        for name in joined:
            self.assertTrue(torch.equal(found[name], expected[name].half()), name)
            self.assertTrue(torch.equal(found[name], pairs[f"{name}.weight"].half()), name)

    def test_what_would_not_load_is_refused(self):
        for name in OF_EXPERTS:
            for options, what in ((DIALECTS["int4_asymmetric"], "zero points"),
                                  (["--format", "nvfp4"], "global scales")):
                out = self.folder / "refused"
                with self.assertRaisesRegex(AssertionError, f"{what} of experts"):
                    run_qk("quantize", self.folder / name, out, *options)
                self.assertFalse(out.exists())


if __name__ == "__main__":
    print(f"transformers {transformers.__version__}, bitsandbytes {bitsandbytes.__version__}, "
          f"torch {torch.__version__}")
    transformers.logging.set_verbosity_error()
    unittest.main()
