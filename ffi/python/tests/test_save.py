"""Saving: nothing is overwritten unasked, config.json keeps what it had, and all or nothing."""
import json
import pickle
import stat
import tempfile

from common import np, os, qk, unittest

MODEL = {"model_type": "llama", "rope_theta": 1e6, "rms_norm_eps": 1e-05, "eos_token_id": [1, 2],
         "rope_scaling": {"type": "linear", "factor": 2.5}, "tie_word_embeddings": False,
         "torch_dtype": None, "architectures": ["LlamaForCausalLM"], "größe": "groß"}


def weight(format="nf4", **options):
    return qk.quantize(np.outer(np.linspace(-1, 1, 8), np.linspace(-1, 1, 64)).astype("f"), format,
                       **options)


class Save(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.path, self.config = self.at("model.safetensors"), self.at("config.json")

    def at(self, name):
        return os.path.join(self.folder, name)

    def files(self):
        found = {}
        for name in os.listdir(self.folder):
            with open(self.at(name), "rb") as file:
                found[name] = file.read()
        return found

    def write(self, path, data):
        with open(path, "w", encoding="utf-8") as file:
            file.write(data if isinstance(data, str) else json.dumps(data))

    def keys(self):
        with open(self.config, encoding="utf-8") as file:
            return json.load(file)

    def refused(self, kind, sentence, call):
        before = self.files()
        with self.assertRaisesRegex(kind, sentence) as caught:
            call()
        self.assertEqual(self.files(), before)
        return caught.exception

    def test_config_keeps_what_a_model_says_of_itself(self):
        self.write(self.config, MODEL)
        qk.save(self.path, {"l": weight(), "kept": weight().to("f16")}, config=True)
        keys = self.keys()
        section = keys.pop("quantization_config")
        self.assertEqual(keys, MODEL)
        self.assertEqual(list(keys), list(MODEL))
        self.assertEqual((section["quant_method"], section["llm_int8_skip_modules"]),
                         ("bitsandbytes", ["kept", "lm_head"]))
        self.assertEqual(sorted(qk.load(self.folder)), ["kept", "l"])

    def test_without_one_config_is_new(self):
        qk.save(self.path, {"l": weight("int4", symmetric=True)}, config=True)
        self.assertEqual(list(self.keys()), ["quantization_config"])
        self.assertEqual(self.keys()["quantization_config"]["quant_method"], "compressed-tensors")
        qk.save(self.at("c.safetensors"), {"l": weight()})
        self.assertEqual(sorted(self.files()),
                         ["c.safetensors", "config.json", "model.safetensors"])

    def test_nothing_is_overwritten_unasked(self):
        qk.save(self.path, {"l": weight()}, config=True)
        other = {"l": weight("fp4")}
        for config in (False, True):
            sentence = "^path: .*model.safetensors is there already; overwrite=True"
            error = self.refused(FileExistsError, sentence, lambda config=config: qk.save(
                self.path, other, config=config))
            self.assertIsInstance(error, qk.StorageError)
            self.assertEqual((error.name, error.filename), ("QK_ERROR_FILE", self.path))
            self.assertIsInstance(pickle.loads(pickle.dumps(error)), qk.ExistsError)
        second = self.at("second.safetensors")
        self.refused(qk.ExistsError, "^config: .*config.json has a quantization_config already",
                     lambda: qk.save(second, other, config=True))
        qk.save(second, other)
        qk.save(self.path, other, config=True, overwrite=True)
        self.assertEqual(self.keys()["quantization_config"]["bnb_4bit_quant_type"], "fp4")
        self.assertEqual(qk.load(self.path)["l"].weight.format, "fp4_bnb")

    def test_dense_layers_take_the_section_away(self):
        self.write(self.config, {**MODEL, "quantization_config": {"quant_method": "awq"}})
        self.refused(qk.ExistsError, "quantization_config",
                     lambda: qk.save(self.path, {"l": weight().to("f32")}, config=True))
        qk.save(self.path, {"l": weight().to("f32")}, config=True, overwrite=True)
        self.assertEqual(self.keys(), MODEL)
        qk.save(self.at("arrays.safetensors"), {"a": np.ones(3, "f")}, config=True)
        self.assertEqual(self.keys(), MODEL)

    def test_both_files_change_or_none(self):
        qk.save(self.path, {"l": weight()})
        good, other = {"l": weight()}, {"l": weight("fp4")}

        def save(layers=other, **options):
            qk.save(self.path, layers, config=True, overwrite=True, **options)

        for text, sentence in (('{"model_type": ', "config is not valid JSON"),
                               ("[1, 2]", "must be an object")):
            self.write(self.config, text)
            self.refused(qk.StorageError, sentence, save)
        os.remove(self.config)
        os.mkdir(self.config)
        with open(self.path, "rb") as file:
            before = file.read()
        with self.assertRaises(OSError):
            save()
        self.assertEqual(sorted(os.listdir(self.folder)), ["config.json", "model.safetensors"])
        os.rmdir(self.config)
        self.assertEqual(self.files(), {"model.safetensors": before})
        self.write(self.config, MODEL)
        self.refused(qk.CallError, "'l' is stored as bitsandbytes and 'm' as compressed_tensors",
                     lambda: save({**good, "m": weight("int4")}))
        self.refused(qk.CallError, "l.bias", lambda: save({"l": qk.Layer(weight(), np.ones(8, "f")),
                                                           "l.bias": np.zeros(8, "f")}))
        self.refused(qk.CallError, "is int64, accepted", lambda: save({**good, "i": np.arange(3)}))
        closed = weight()
        closed.close()
        self.refused(qk.CallError, "NULL|closed", lambda: save({**good, "closed": closed}))

    def test_links_are_followed_and_modes_kept(self):
        stored = self.at("stored.bin")
        qk.save(stored, {"l": weight()})
        os.chmod(stored, 0o600)
        os.symlink(stored, self.path)
        self.refused(FileExistsError, "model.safetensors is there",
                     lambda: qk.save(self.path, {"l": weight()}))
        qk.save(self.path, {"l": weight("fp4")}, overwrite=True)
        self.assertTrue(os.path.islink(self.path))
        self.assertEqual(stat.S_IMODE(os.stat(stored).st_mode), 0o600)
        self.assertEqual(qk.load(stored)["l"].weight.format, "fp4_bnb")

    def test_grus_are_saved_whole_and_not_over_another_unasked(self):
        gru = qk.GRU(np.ones((12, 3), "f"), np.ones((12, 4), "f"))
        gru.calibrate(np.ones((5, 3), "f"))
        path = self.at("gru.qkg")
        with self.assertRaises(qk.CallError):
            gru.save(path)  # not frozen
        self.assertEqual(self.files(), {})
        gru.freeze().save(path)
        self.assertEqual(self.files(), {"gru.qkg": gru.tobytes()})
        self.refused(FileExistsError, "gru.qkg is there already", lambda: gru.save(path))
        gru.save(path, overwrite=True)
        self.assertEqual(qk.GRU.load(path).tobytes(), gru.tobytes())
        with self.assertRaises(FileNotFoundError):
            qk.GRU.load(self.at("nowhere"))


if __name__ == "__main__":
    unittest.main()
