"""save_pretrained after qk.torch.replace_linear: from_pretrained reads the same model again.

Before a release; needs PyTorch and transformers, and for its parts bitsandbytes.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from test_torch_models import llama, logits, mixture, package, qk, torch, transformers, unittest


class Saving(unittest.TestCase):
    def saved_and_read(self, model):
        """What from_pretrained makes of a model's files, and how it is described there."""
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            config = json.loads(Path(folder, "config.json").read_text())
            model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
            return model, config.get("quantization_config")

    def test_replaced_models_save_what_they_are(self):
        for model in (llama(), mixture("Mixtral"), mixture("GptOss")):
            qk.torch.replace_linear(model, "nf4", nested=True)
            again, config = self.saved_and_read(model)
            self.assertEqual((config["layers"], config["nested"]), ({}, True))
            self.assertTrue(torch.equal(logits(again), logits(model)))
            self.assertEqual([type(m) for m in again.modules()], [type(m) for m in model.modules()])

    def test_replaced_models_of_several_formats(self):
        model = mixture("Mixtral")
        qk.torch.replace_linear(model, "int8", modules_to_not_convert=["q_proj", "experts"])
        qk.torch.replace_linear(model, "nf4", nested=True, modules_to_not_convert=[])
        again, config = self.saved_and_read(model)
        self.assertEqual(config["modules_to_not_convert"], [])
        self.assertEqual(len(config["layers"]), 4)  # q_proj and experts of two blocks
        self.assertTrue(torch.equal(logits(again), logits(model)))
        third, same = self.saved_and_read(again)
        self.assertEqual(same, config)
        self.assertTrue(torch.equal(logits(third), logits(model)))
        third.dequantize()
        qk.torch.dequantize_linear(model)
        for dense in (third, model):
            plain, config = self.saved_and_read(dense)
            self.assertIsNone(config)
            self.assertTrue(torch.equal(logits(plain), logits(dense)))

    def test_layers_of_bitsandbytes_are_saved_as_ours(self):
        package("bitsandbytes")
        theirs = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
        with tempfile.TemporaryDirectory() as dense:
            llama().save_pretrained(dense)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                dense, quantization_config=theirs).train()
        self.assertEqual(len(qk.torch.replace_linear(model).replaced), 14)
        again, config = self.saved_and_read(model.eval())
        self.assertEqual(config["quant_method"], "qk")
        self.assertTrue(torch.equal(logits(again), logits(model)))




if __name__ == "__main__":
    unittest.main()
