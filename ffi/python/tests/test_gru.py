"""GRUs: calibrate, freeze, stream, save; against PyTorch where it is installed."""
import pickle
import tempfile
import weakref

from common import DENOISER, np, os, qk, torch, unittest

C, H, STEPS = 16, 64, 512


def signal(name):
    return np.fromfile(DENOISER / name, "f").reshape(STEPS, C)


def denoiser(**options):
    file = qk.load(DENOISER / "denoiser.safetensors")
    return qk.GRU(*(file.tensor(f"gru.{name}_l0") for name in
                    ("weight_ih", "weight_hh", "bias_ih", "bias_hh")), **options)


class Gru(unittest.TestCase):
    def test_every_preset_reaches_its_accuracy(self):
        x = signal("test.f32")
        # docs/gru.md's floors for any network, per preset
        for preset, floor in (("w8h16", 29.5), ("w8a16", 29.5), ("w16a16", 29.5)):
            gru = denoiser(preset=preset).calibrate(signal("calibration.f32"))
            exact = gru.run_float(x)
            y = gru.freeze()(x)
            sqnr = 10 * np.log10((exact ** 2).sum() / ((exact - y) ** 2).sum())
            self.assertGreaterEqual(sqnr, floor, preset)

    def test_streams_batches_and_files_give_the_same_bits(self):
        x = signal("test.f32")
        gru = denoiser().calibrate(signal("calibration.f32")).freeze()
        y = gru(x)
        self.assertEqual((y.shape, y.dtype), ((STEPS, H), np.float32))
        with gru.stream() as state:
            np.testing.assert_array_equal(np.stack([state(frame) for frame in x[:64]]), y[:64])
            np.testing.assert_array_equal(state.read()[0], y[63])
            out = np.empty((STEPS - 64, H), "f")
            self.assertIs(state(x[64:], out=out), out)
            np.testing.assert_array_equal(out, y[64:])
            state.write(y[63][None])
            np.testing.assert_array_equal(state(x[64:80]), y[64:80])
            state.reset()
            np.testing.assert_array_equal(state(x[:9]), y[:9])
        batch = np.stack([x[:100], x[100:200], x[200:300]], axis=1)
        together = gru(batch)
        for i in range(3):
            np.testing.assert_array_equal(together[:, i],
                                          gru(np.ascontiguousarray(batch[:, i])))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "gru.qkg")
            gru.save(path)
            again = qk.GRU.load(path)
        self.assertEqual((again.input_size, again.hidden_size, again.is_frozen), (C, H, True))
        np.testing.assert_array_equal(again(x), y)
        self.assertEqual(again.tobytes(), gru.tobytes())
        model, owner = again.describe(), weakref.ref(again)
        del again
        self.assertIsNotNone(owner())  # the model's arrays are its memory
        self.assertEqual(qk.GRU.from_model(model).tobytes(), gru.tobytes())

    def test_codes_and_scales(self):
        gru = denoiser(preset="w8a8").set_quant("x", bits=8, symmetric=True)
        gru.calibrate(signal("calibration.f32")).freeze()
        x = signal("test.f32")[:32]
        shift, zero = gru.scale("x")
        codes = np.clip(np.rint(x * 2.0 ** shift) + zero, -128, 127).astype(np.int8)
        y = gru(codes)
        self.assertEqual(y.dtype, np.int8)
        shift, zero = gru.scale("h")
        np.testing.assert_array_equal((y.astype("f") - zero) * np.float32(2.0 ** -shift), gru(
            np.ascontiguousarray(x)))

    def test_ranges_are_read_given_and_merged(self):
        x = signal("calibration.f32")
        for options in ({}, {"preset": "w8a8", "options": ("bias_correction",)}):
            whole = denoiser(**options).calibrate(x[:256]).calibrate(x[256:])
            seen = whole.ranges()
            self.assertEqual((seen.samples, seen.min["x"], seen.max["x"]),
                             (len(x), x.min(), x.max()))
            self.assertNotIn("w", seen.min)
            np.testing.assert_allclose(seen.x_sum, x.sum(0, np.float64), rtol=1e-6)
            parts = [denoiser(**options).calibrate(part).ranges() for part in (x[:256], x[256:])]
            merged = denoiser(**options)
            for part in pickle.loads(pickle.dumps(parts)):
                merged.merge_ranges(part)
            given, image = denoiser(**options).set_ranges(seen), whole.freeze().tobytes()
            self.assertEqual(merged.freeze().tobytes(), image)
            self.assertEqual(given.freeze().tobytes(), image)
        gru = denoiser()
        for wrong, sentence in ((seen._replace(samples=2 ** 64), "samples: is"),
                                (seen._replace(x_sum=np.zeros(3)), r"x_sum: is \[3\], must be"),
                                (seen._replace(min={"y": 0.0}), "ranges: is 'y', accepted are x")):
            with self.assertRaisesRegex(qk.CallError, sentence):
                gru.set_ranges(wrong)
        with self.assertRaisesRegex(qk.UnsupportedError, "needs the data"):
            denoiser(calibration="mse").set_ranges(seen)

    def test_codes_that_are_cut_are_counted(self):
        x = signal("test.f32")[:64]
        gru = denoiser().calibrate(signal("calibration.f32")).freeze()
        with gru.stream() as state:
            y = state(x)
            self.assertEqual(state.clipped()["samples"], 0)
            state.reset()
            state.count_clipped()
            np.testing.assert_array_equal(state(x), y)
            state(np.full(C, 1e6, "f"))
            cut = state.clipped()
            self.assertEqual((cut["samples"], cut["x"] >= C), (65, True))
            state.count_clipped(False)
            state(x)
            self.assertEqual(state.clipped(), cut)

    def test_y_of_another_shape_is_refused(self):
        gru = denoiser()
        gru.calibrate(signal("calibration.f32")).freeze()
        x = signal("test.f32")[:4]
        turned = np.zeros((64, 4), np.float32).T.reshape(2, 2, 64).transpose(2, 0, 1)
        with self.assertRaisesRegex(qk.CallError, r"out: is \[64, 2, 2\], must be \[4, 64\]"):
            gru.stream()(x, out=turned)

    def test_tensors_of_qk_give_tensors(self):
        gru = denoiser().calibrate(signal("calibration.f32")).freeze()
        x = signal("test.f32")[:6]
        for steps in (x, x.reshape(2, 3, C)):
            y = gru(qk.asarray(steps))
            self.assertIsInstance(y, qk.Tensor)
            np.testing.assert_array_equal(np.asarray(y), gru(steps))
        with self.assertRaisesRegex(qk.CallError, r"x: is \[16\], a qk.Tensor must be \[t,c\]"):
            gru.stream()(qk.asarray(x[0]))

    def test_misuse_is_refused_in_words(self):
        gru = denoiser()
        with self.assertRaisesRegex(qk.CallError, "calibrat"):
            gru.freeze()
        with self.assertRaisesRegex(qk.CallError, "frozen"):
            gru.stream()
        with self.assertRaisesRegex(qk.CallError, r"h0: is \[1, 3\], must be \[1, 64\]"):
            gru.calibrate(signal("test.f32"), np.zeros((1, 3)))
        with self.assertRaisesRegex(qk.CallError, "preset: is 'w4'"):
            denoiser(preset="w4")
        gru.close()
        with self.assertRaisesRegex(qk.CallError, "closed"):
            gru.tobytes()

    def test_from_torch_is_the_module(self):
        t = torch()
        t.manual_seed(1)
        module = t.nn.GRU(12, 20, num_layers=2, bidirectional=True)
        x = t.randn(40, 3, 12)
        with t.no_grad():
            exact = module(x)[0].numpy()
            single = t.nn.GRU(12, 20)
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                getattr(single, name + "_l0").copy_(getattr(module, name + "_l0_reverse"))
            backward = single(x.flip(0))[0].flip(0)
        gru = qk.GRU.from_torch(module, layer=0, reverse=True, preset="w8h16")
        flipped = x.flip(0).contiguous()
        gru.calibrate(flipped)
        np.testing.assert_allclose(gru.run_float(flipped)[::-1], backward.numpy(), atol=1e-5)
        y = gru.freeze()(flipped)
        self.assertIsInstance(y, t.Tensor)
        forward = qk.GRU.from_torch(module, layer=0, reverse=False).calibrate(x)
        self.assertEqual(exact.shape[-1], 40)
        np.testing.assert_allclose(forward.run_float(x), single_layer(t, module, x), atol=1e-5)
        with self.assertRaisesRegex(qk.CallError, "weight_ih_l2"):
            qk.GRU.from_torch(module, layer=2, reverse=False)
        second = t.nn.GRU(40, 20)
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(second, name + "_l0").data = getattr(module, name + "_l1").data
        with t.no_grad():
            middle = t.nn.GRU(12, 20, bidirectional=True)
            middle.load_state_dict({name: value for name, value in module.state_dict().items()
                                    if "_l0" in name})
            z = middle(x)[0]
            upper = second(z)[0].numpy()
        gru = qk.GRU.from_torch(module, layer=1, reverse=False)
        np.testing.assert_allclose(gru.run_float(z), upper, atol=1e-5)

    def test_from_torch_takes_what_it_keeps(self):
        t = torch()
        x = t.randn(9, 2, 5)
        for options, data in (({"bias": False}, x), ({"dropout": 0.0}, x),
                              ({"batch_first": True}, x.transpose(0, 1)),
                              ({"dtype": t.bfloat16}, x), ({"dtype": t.float64}, x)):
            module = t.nn.GRU(5, 4, **options)
            chosen = {"batch_first": False} if module.batch_first else {}
            gru = qk.GRU.from_torch(module, **chosen)
            with t.no_grad():
                exact = module.float()(data)[0]
            exact = exact.transpose(0, 1) if module.batch_first else exact
            np.testing.assert_allclose(gru.run_float(x), exact.numpy(), atol=1e-5)
        eval_only = t.nn.GRU(5, 4, num_layers=2, dropout=0.5)
        with self.assertRaisesRegex(qk.CallError, "drops out 0.5"):
            qk.GRU.from_torch(eval_only, layer=1)
        self.assertEqual(qk.GRU.from_torch(eval_only.eval(), layer=1).input_size, 4)
        with self.assertRaisesRegex(qk.CallError, "^module: is a torch.nn.LSTM, accepted"):
            qk.GRU.from_torch(t.nn.LSTM(5, 4))

    def test_from_torch_refuses_what_it_would_drop(self):
        class Module:  # what qk looks at of a torch.nn.GRU
            mode, num_layers, bidirectional, batch_first, dropout, training = \
                "GRU", 1, False, False, 0.0, True
            weight_ih_l0, weight_hh_l0 = np.ones((12, 3), "f"), np.ones((12, 4), "f")
            weight_ih_l0_reverse, weight_hh_l0_reverse = weight_ih_l0, weight_hh_l0

            def __init__(self, **facts):
                vars(self).update(facts)

        for facts, sentence, chosen in (
                ({"num_layers": 3}, "has 3 layers.*layer=0 to 2", {"layer": 0}),
                ({"bidirectional": True}, "is bidirectional.*reverse=False.*reverse=True",
                 {"reverse": True}),
                ({"batch_first": True}, r"batch_first.*transpose\(0, 1\)", {"batch_first": False}),
                ({"num_layers": 2, "dropout": 0.25}, "has 2 layers", None),
                ({"proj_size": 2}, "projects h to 2", None),
                ({"mode": "LSTM"}, "is a torch.nn.LSTM, accepted is torch.nn.GRU", None),
                ({"mode": "RNN_TANH"}, "is a torch.nn.RNN, accepted", None)):
            with self.assertRaisesRegex(qk.CallError, f"^module: .*{sentence}"):
                qk.GRU.from_torch(Module(**facts))
            if chosen is not None:
                self.assertEqual(qk.GRU.from_torch(Module(**facts), **chosen).hidden_size, 4)
        with self.assertRaisesRegex(qk.CallError, "drops out 0.25.*eval"):
            qk.GRU.from_torch(Module(num_layers=2, dropout=0.25), layer=0)
        self.assertEqual(qk.GRU.from_torch(Module(num_layers=2, dropout=0.25, training=False),
                                           layer=0).input_size, 3)
        self.assertEqual(qk.GRU.from_torch(Module(dropout=0.25)).input_size, 3)  # one layer: none
        with self.assertRaisesRegex(qk.CallError, "^batch_first: is True, accepted is False"):
            qk.GRU.from_torch(Module(), batch_first=True)
        with self.assertRaisesRegex(qk.CallError, "^layer: is -1, accepted are 0 to"):
            qk.GRU.from_torch(Module(), layer=-1)


def single_layer(t, module, x):
    single = t.nn.GRU(12, 20)
    with t.no_grad():
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(single, name + "_l0").copy_(getattr(module, name + "_l0"))
        return single(x)[0].numpy()


if __name__ == "__main__":
    unittest.main()
