"""qk.torch in models: replaced layers, other packages' modules, transformers, QLoRA by peft.

Before a release; needs PyTorch and transformers, and for its parts bitsandbytes,
compressed-tensors and peft. Models are small and random, nothing is downloaded.
"""
import copy
import json
import os
import sys
import tempfile

from common import GOLDEN, qk, replicas, unittest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TQDM_DISABLE"] = "1"
try:
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
import qk.torch

TOKENS = torch.arange(24).reshape(2, 12) * 7 % 96


def package(name):
    try:
        return __import__(name)
    except ImportError:
        raise unittest.SkipTest(f"{name} is not installed") from None


def llama(**options):
    torch.manual_seed(5)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=96, hidden_size=128, intermediate_size=352, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        initializer_range=0.1, **options)).eval()


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits


class Replace(unittest.TestCase):
    def test_dense(self):
        for options in ({"format": "nf4", "nested": True}, {"format": "int8"}, {"format": "mxfp4"}):
            model, dense = llama(), llama()
            report = qk.torch.replace_linear(model, **options)
            self.assertEqual((len(report.replaced), list(report.kept)), (14, ["lm_head"]))
            self.assertIn("14 linear layers replaced, 1 kept", str(report))
            with torch.no_grad():
                for name in report.replaced:
                    weight = qk.quantize(dense.get_submodule(name).weight, **options)
                    dense.get_submodule(name).weight.copy_(torch.from_numpy(weight.dequantize()))
            torch.testing.assert_close(logits(model), logits(dense))
            self.assertEqual(qk.torch.dequantize_linear(model), 14)
            self.assertTrue(torch.equal(logits(model), logits(dense)))

    def test_what_stays(self):
        model = llama(tie_word_embeddings=True)
        report = qk.torch.replace_linear(model, modules_to_not_convert=["q_proj", "layers.1"])
        self.assertIn("shares its weight with", report.kept["lm_head"])
        self.assertEqual(len(report.replaced), 6)  # of layer 0, all but q_proj
        self.assertIs(model.lm_head.weight, model.model.embed_tokens.weight)
        layers = torch.nn.ModuleDict({
            "encoder": torch.nn.TransformerEncoderLayer(32, 2, 64), "narrow": torch.nn.Linear(0, 4),
            "one": torch.nn.Linear(64, 32), "wide": torch.nn.Linear(64, 32).double()})
        layers["two"] = layers["one"]
        report = qk.torch.replace_linear(layers)
        self.assertIs(layers["one"], layers["two"])
        self.assertEqual(sorted(report.replaced), ["one", "two"])
        self.assertIn("reads its weight", report.kept["encoder.linear1"])
        self.assertIn("float64", report.kept["wide"])
        self.assertIn("narrow", report.kept)
        report = qk.torch.replace_linear(torch.nn.Linear(64, 32))
        self.assertIn("kept the model: is a layer itself", str(report))

    def test_conv1d(self):
        torch.manual_seed(1)
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=96, n_positions=64, n_embd=64, n_layer=1, n_head=2)).eval()
        dense = logits(model)
        report = qk.torch.replace_linear(model, "int8")
        self.assertEqual(len(report.replaced), 4)
        torch.testing.assert_close(logits(model), dense, atol=0.05, rtol=0)


SMALL = dict(vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
             initializer_range=0.1, head_dim=16)
MIXTURES = {
    "Qwen3Moe": dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32),
    "Mixtral": dict(num_local_experts=4),
    "GptOss": dict(num_local_experts=4, num_experts_per_tok=2, hidden_act="silu")}


def mixture(kind, **options):
    torch.manual_seed(6)
    config = getattr(transformers, f"{kind}Config")(**{**SMALL, **MIXTURES[kind], **options})
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("_proj_bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def tokens(model):
    return model.generate(TOKENS[:, :6], max_new_tokens=12, do_sample=False, eos_token_id=None,
                          pad_token_id=0)


class Mixtures(unittest.TestCase):
    def test_tokens_are_those_of_the_dequantized_twin(self):
        for kind in MIXTURES:
            for options in ({"format": "nf4"}, {"format": "mxfp4"}, {"format": "int8"}):
                with self.subTest(kind, **options):
                    model = mixture(kind)
                    dense = tokens(model)
                    report = qk.torch.replace_linear(model, **options)
                    experts = [m for m in model.modules() if isinstance(m, qk.torch.Experts)]
                    self.assertEqual((len(experts), len(report.replaced)), (2, 10))
                    self.assertEqual(list(report.kept), ["lm_head"])
                    ours, of_model = tokens(model), logits(model)
                    self.assertEqual(qk.torch.dequantize_linear(model), 10)
                    self.assertTrue(torch.equal(ours, tokens(model)))
                    torch.testing.assert_close(of_model, logits(model), atol=2e-4, rtol=2e-4)
                    if options["format"] == "int8":  # the gate, the biases and the order are right
                        self.assertGreater((ours == dense).float().mean(), 0.6)

    def test_activations(self):
        for act, name in (("gelu", "gelu"), ("gelu_pytorch_tanh", "gelu_tanh"), ("silu", "silu")):
            model = mixture("Mixtral", hidden_act=act)
            qk.torch.replace_linear(model, "int8")
            experts = model.model.layers[0].mlp.experts
            self.assertEqual(experts.gate[:2], (name, False))
        model = mixture("GptOss")
        qk.torch.replace_linear(model, "int8")
        self.assertEqual(model.model.layers[0].mlp.experts.gate,
                         ("swiglu_clamped", True, 7.0, 1.702))
        model = mixture("Mixtral", hidden_act="relu")
        report = qk.torch.replace_linear(model, "int8")
        self.assertIn("activation", report.kept["model.layers.0.mlp.experts"])
        report = qk.torch.replace_linear(mixture("Mixtral"), convert_experts=False)
        self.assertEqual(len(report.replaced), 8)

    def test_life_as_a_module(self):
        model = mixture("Qwen3Moe")
        qk.torch.replace_linear(model, "nf4")
        before, codes = logits(model), model.model.layers[0].mlp.experts.gate_up_proj.clone()
        again = mixture("Qwen3Moe", initializer_range=0.2)
        qk.torch.replace_linear(again, "nf4")
        again.load_state_dict(model.state_dict())
        self.assertTrue(torch.equal(before, logits(again)))
        self.assertTrue(torch.equal(before, logits(copy.deepcopy(model))))
        half = copy.deepcopy(model).to(torch.bfloat16)
        self.assertTrue(torch.equal(codes, half.model.layers[0].mlp.experts.gate_up_proj))
        self.assertEqual(logits(half).dtype, torch.bfloat16)
        experts = model.model.layers[0].mlp.experts
        x = torch.randn(5, 64)
        index, weight = torch.tensor([[0, 8, 3]] * 5), torch.rand(5, 3)
        y = experts(x, index, weight)  # 8: skipped
        rest = experts(x, index[:, ::2], weight[:, ::2])
        torch.testing.assert_close(y, rest, atol=1e-6, rtol=1e-6)
        self.assertEqual(experts(x[:0], index[:0], weight[:0]).shape, (0, 64))
        twin, index = experts.dequantize(), index[:, ::2]
        weight, grads = weight[:, ::2], []
        for module in (experts, twin):
            leaf = x.clone().requires_grad_()
            module(leaf, index, weight).square().sum().backward()
            grads.append(leaf.grad)
        torch.testing.assert_close(*grads)

    def test_data_parallel_copies(self):
        model = mixture("GptOss")  # with biases
        qk.torch.replace_linear(model, "nf4")
        expected = logits(model)
        for other in replicas(model):
            self.assertTrue(torch.equal(logits(other), expected))

    def test_compiled(self):
        model = mixture("Qwen3Moe")
        qk.torch.replace_linear(model, "nf4")
        experts = model.model.layers[0].mlp.experts
        x, index, weight = torch.randn(5, 64), torch.randint(0, 8, (5, 3)), torch.rand(5, 3)
        with torch.no_grad():
            compiled = torch.compile(experts, backend="eager", fullgraph=True)
            self.assertTrue(torch.equal(compiled(x, index, weight), experts(x, index, weight)))


class Foreign(unittest.TestCase):
    def check(self, module, expected):
        """The layer that takes the module's place has these weights, to the bit."""
        parent = torch.nn.ModuleDict({"layer": module})
        report = qk.torch.replace_linear(parent)
        self.assertEqual(report.kept, {})
        self.assertTrue(torch.equal(parent["layer"].dequantize(), expected))
        return parent["layer"]

    def test_bitsandbytes(self):
        bnb = package("bitsandbytes")
        from bitsandbytes.functional import dequantize_4bit
        dense = torch.nn.Linear(128, 96)
        for kind in ("nf4", "fp4"):
            for nested in (False, True):
                module = bnb.nn.Linear4bit(128, 96, quant_type=kind, compress_statistics=nested,
                                           compute_dtype=torch.float32)
                module.load_state_dict(dense.state_dict())
                module = module.to("cpu")
                weight = module.weight
                expected = dequantize_4bit(weight.data, weight.quant_state).float()
                layer = self.check(module, expected)
                self.assertTrue(torch.equal(layer.bias, dense.bias))
        module = bnb.nn.Linear8bitLt(128, 96, has_fp16_weights=False)
        module.load_state_dict(dense.state_dict())
        module = module.to("cpu")
        state = module.state_dict()
        parent = torch.nn.ModuleDict({"layer": module})
        qk.torch.replace_linear(parent)
        layer = parent["layer"]
        self.assertEqual(layer.format, "s8")
        self.assertTrue(torch.equal(layer.weight, state["weight"]))
        torch.testing.assert_close(layer.weight_scale, state["SCB"] / 127, rtol=2e-7, atol=0)

    def test_awq_and_gptq(self):
        for folder in ("awq_gemm_g128", "awq_gemm_g64", "awq_gemv_g64", "gptq_v1_asym_g32",
                       "gptq_v1_sym_g128", "gptq_v2_asym_g128", "gptq_v1_act_order_asym_g32"):
            config = json.loads((GOLDEN / folder / "config.json").read_text())
            config = config["quantization_config"]
            file = qk.load(GOLDEN / folder)
            tensors = load_file(GOLDEN / folder / "model.safetensors")
            for name in file:
                module = torch.nn.Module()
                for key, value in tensors.items():
                    if key.rpartition(".")[0] == name:
                        module.register_buffer(key.rpartition(".")[2], value)
                module.out_features, module.in_features = file.layer(name).shape
                module.bits, module.group_size = config["bits"], config["group_size"]
                if config.get("checkpoint_format") == "gptq_v2":
                    module.qzero_format = lambda: 2
                with self.subTest(folder=folder, layer=name):
                    self.check(module, torch.from_numpy(file[name].dequantize()))

    def test_compressed_tensors(self):
        package("compressed_tensors")
        from compressed_tensors.quantization import QuantizationScheme
        for folder in ("ct_int4_asym_g32", "ct_int4_sym_channel", "ct_int8_channel",
                       "ct_fp8_channel", "ct_nvfp4", "ct_mxfp4"):
            config = json.loads((GOLDEN / folder / "config.json").read_text())
            config = config["quantization_config"]
            group = next(iter(config["config_groups"].values()))
            scheme = QuantizationScheme(**{"format": config["format"], **group})
            file = qk.load(GOLDEN / folder)
            tensors = load_file(GOLDEN / folder / "model.safetensors")
            for name in file:
                if file.layer(name).dialect == "dense":
                    continue
                n, k = file.layer(name).shape
                module = torch.nn.Linear(k, n, bias=False)
                del module.weight
                for key, value in tensors.items():
                    if key.rpartition(".")[0] == name:
                        module.register_parameter(key.rpartition(".")[2],
                                                  torch.nn.Parameter(value, requires_grad=False))
                module.quantization_scheme = scheme
                with self.subTest(folder=folder, layer=name):
                    self.check(module, torch.from_numpy(file[name].dequantize()))


class Transformers(unittest.TestCase):
    def load(self, folder, **options):
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            folder, output_loading_info=True, **options)
        for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
            self.assertFalse(found.get(key), key)
        return model.eval()

    def test_load_save_load(self):
        for tied in (False, True):
            for options in ({"format": "nf4", "nested": True},
                            {"format": "int4", "group_size": 32, "symmetric": False}):
                expected = llama(tie_word_embeddings=tied)
                with tempfile.TemporaryDirectory() as dense, tempfile.TemporaryDirectory() as small:
                    expected.save_pretrained(dense)
                    model = self.load(dense, quantization_config=qk.torch.QkConfig(**options))
                    qk.torch.replace_linear(expected, **options)
                    self.assertTrue(torch.equal(logits(model), logits(expected)))
                    model.save_pretrained(small)
                    again = self.load(small)
                    self.assertTrue(torch.equal(logits(again), logits(expected)))
                    half = self.load(small, dtype=torch.bfloat16)
                down = half.model.layers[1].mlp.down_proj
                for one, other in zip(down.planes, again.model.layers[1].mlp.down_proj.planes):
                    self.assertTrue(one.dtype == other.dtype and torch.equal(one, other))
                self.assertEqual(logits(half).dtype, torch.bfloat16)
                self.assertEqual(tied, again.lm_head.weight is again.model.embed_tokens.weight)

    def test_mixtures(self):
        """Experts are quantized as they are read, from a tensor an expert too, and saved so."""
        for kind in MIXTURES:
            for options in ({"format": "nf4"}, {"format": "mxfp4"}):
                expected = mixture(kind)
                with tempfile.TemporaryDirectory() as dense, tempfile.TemporaryDirectory() as small:
                    expected.save_pretrained(dense)
                    names = load_file(f"{dense}/model.safetensors")
                    self.assertEqual(any(".experts.0." in name for name in names),
                                     kind != "GptOss")
                    with self.subTest(kind, **options):
                        model = self.load(dense,
                                          quantization_config=qk.torch.QkConfig(**options))
                        qk.torch.replace_linear(expected, **options)
                        self.assertIsInstance(model.model.layers[1].mlp.experts, qk.torch.Experts)
                        self.assertTrue(torch.equal(logits(model), logits(expected)))
                        model.save_pretrained(small)
                        names = load_file(f"{small}/model.safetensors")
                        experts = [name for name in names if ".experts." in name]
                        self.assertEqual({names[name].dtype for name in experts
                                          if name.endswith("_proj")}, {torch.uint8})
                        again = self.load(small)
                        self.assertTrue(torch.equal(logits(again), logits(expected)))
        with tempfile.TemporaryDirectory() as dense:
            mixture("Mixtral").save_pretrained(dense)
            config = qk.torch.QkConfig(convert_experts=False)
            model = self.load(dense, quantization_config=config)
            self.assertEqual(model.model.layers[0].mlp.experts.down_proj.dtype, torch.float32)

    def test_refused(self):
        with self.assertRaisesRegex(qk.CallError, "accepted are"):
            qk.torch.QkConfig("nf5")

    def test_conv1d(self):
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=96, n_positions=64, n_embd=64, n_layer=1, n_head=2)).eval()
        with tempfile.TemporaryDirectory() as dense, tempfile.TemporaryDirectory() as small:
            model.save_pretrained(dense)
            loaded = self.load(dense, quantization_config=qk.torch.QkConfig("int8"))
            qk.torch.replace_linear(model, "int8")
            self.assertTrue(torch.equal(logits(loaded), logits(model)))
            loaded.save_pretrained(small)
            self.assertTrue(torch.equal(logits(self.load(small)), logits(model)))


class QLoRA(unittest.TestCase):
    def gradients(self, model, peft):
        torch.manual_seed(9)
        model = peft.get_peft_model(model, peft.LoraConfig(
            r=8, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False))
        model.train()
        model(input_ids=TOKENS, labels=TOKENS).loss.backward()
        return {name: value.grad for name, value in model.named_parameters()
                if value.grad is not None}

    def test_gradients_equal_the_dense_twins(self):
        peft = package("peft")
        quantized, dense = llama(), llama()
        for model in (quantized, dense):
            qk.torch.replace_linear(model, "nf4", nested=True)
        qk.torch.dequantize_linear(dense)
        ours, theirs = self.gradients(quantized, peft), self.gradients(dense, peft)
        self.assertEqual((len(ours), ours.keys()), (28, theirs.keys()))
        for name, grad in theirs.items():
            error = (ours[name] - grad).abs().max() / grad.abs().max()
            self.assertLess(error.item(), 1e-5, name)

    def test_training_learns(self):
        peft = package("peft")
        model = llama()
        qk.torch.replace_linear(model, "nf4", nested=True)
        model.gradient_checkpointing_enable()
        model = peft.get_peft_model(model, peft.LoraConfig(
            r=8, target_modules="all-linear", task_type="CAUSAL_LM"))
        model.enable_input_require_grads()
        optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
        losses = []
        for _ in range(8):
            loss = model(input_ids=TOKENS, labels=TOKENS).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        self.assertLess(losses[-1], 0.7 * losses[0])


if __name__ == "__main__":
    unittest.main()
