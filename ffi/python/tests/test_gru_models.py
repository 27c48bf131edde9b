"""200 random modules of torch.nn.GRU, and the node tests of ONNX; needs PyTorch and onnx.

Integers approximate, so the bound is a signal-to-error ratio, of y and h_n against the package's
own floats: docs/gru.md's floor of W8H16 for any network, and the mean that it states for W16A16
with uniform tables.
"""
import tempfile
import warnings

from common import np, os, qk, torch, unittest

W8H16, W16A16 = 29.5, 62.7


def decibels(exact, got):
    """Signals far below n's least range, -1/4 to 1/4, have its steps: they count as 1/64."""
    exact, got = (np.asarray(array, np.float64) for array in (exact, got))
    error = max(((exact - got) ** 2).mean(), 1e-30)
    return 10 * np.log10(max((exact ** 2).mean(), 64 ** -2) / error)


class Torch(unittest.TestCase):
    def test_random_modules(self):
        torch().manual_seed(19)
        rng = np.random.default_rng(19)
        for i in range(200):
            c, h, layers = (int(rng.integers(*ends)) for ends in ((1, 20), (1, 24), (1, 4)))
            both, first, bias, ragged, start = (bool(rng.integers(2)) for _ in range(5))
            module = torch().nn.GRU(c, h, layers, bias=bias, bidirectional=both,
                                    batch_first=first, dropout=0.5 if layers > 1 else 0).eval()
            steps, batch = int(rng.integers(5, 40)), int(rng.integers(2, 5))
            x = torch().randn((batch, steps, c) if first else (steps, batch, c))
            h0 = torch().rand(layers * (1 + both), batch, h) - 0.5 if start else None
            lengths = rng.integers(1, steps + 1, batch) if ragged else None
            fine = i % 4 == 0
            net = qk.StackedGRU.from_torch(
                module, **({"preset": "w16a16", "options": ("uniform_tables",)} if fine else {}))
            with torch().no_grad():
                if ragged:
                    rnn = torch().nn.utils.rnn
                    packed = rnn.pack_padded_sequence(x, lengths, first, enforce_sorted=False)
                    y, h_n = module(packed, h0)
                    y = rnn.pad_packed_sequence(y, first, total_length=steps)[0]
                else:
                    y, h_n = module(x, h0)
            got, got_h = net.calibrate(x, h0, lengths).freeze()(x, h0, lengths)
            self.assertEqual((got.shape, got_h.shape), (y.shape, h_n.shape))
            for exact, integers in ((y, got), (h_n, got_h)):
                self.assertGreater(decibels(exact, integers), W16A16 if fine else W8H16,
                                   f"{i}: {module}")


class Onnx(unittest.TestCase):
    def cases(self):
        try:
            from onnx.backend.test.case.node import collect_testcases
        except ImportError:
            raise unittest.SkipTest("onnx is not installed") from None
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = [case for case in collect_testcases("GRU") if "gru" in case.name]
        self.assertGreaterEqual(len(found), 6)
        return found

    def test_nodes(self):
        for case in self.cases():
            with self.subTest(case=case.name):
                graph = case.model.graph
                (inputs, outputs), = case.data_sets
                given = dict(zip((value.name for value in graph.input), inputs))
                net = qk.StackedGRU.from_onnx(
                    case.model, weights={name: given[name] for name in given if name != "X"},
                    preset="w16a16", options=("uniform_tables",))
                y, h_n = net.calibrate(given["X"]).freeze()(given["X"])
                ways = len(net.cells[0])
                if net.batch_first:
                    shaped = y.reshape(*y.shape[:2], ways, -1)
                    h_n = h_n.transpose(1, 0, 2)
                else:
                    shaped = y.reshape(*y.shape[:2], ways, -1).transpose(0, 2, 1, 3)
                got = {"Y": shaped, "Y_h": h_n}
                for value, exact in zip(graph.output, outputs):
                    self.assertEqual(got[value.name].shape, exact.shape)
                    self.assertGreater(decibels(exact, got[value.name]), W16A16)

    def test_a_file_whose_weights_are_initializers(self):
        try:
            import onnx
        except ImportError:
            raise unittest.SkipTest("onnx is not installed") from None
        rng = np.random.default_rng(5)
        w, r, b = (rng.standard_normal(shape).astype(np.float32) * np.float32(0.4)
                   for shape in ((2, 18, 4), (2, 18, 6), (2, 36)))
        node = onnx.helper.make_node("GRU", ["X", "w", "r", "b"], ["Y"], name="encoder",
                                     direction="bidirectional", linear_before_reset=1)
        graph = onnx.helper.make_graph(
            [node], "one", [], [], [onnx.numpy_helper.from_array(array, name)
                                    for array, name in ((w, "w"), (r, "r"), (b, "b"))])
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.onnx")
            onnx.save(onnx.helper.make_model(graph), path)
            net = qk.StackedGRU.from_onnx(path, node="encoder")
            with self.assertRaisesRegex(qk.CallError, "0 GRU nodes of the name 'decoder'"):
                qk.StackedGRU.from_onnx(path, node="decoder")
        module = torch().nn.GRU(4, 6, bidirectional=True)
        for side, suffix in enumerate(("", "_reverse")):
            for name, array in (("weight_ih", w[side]), ("weight_hh", r[side]),
                                ("bias_ih", b[side, :18]), ("bias_hh", b[side, 18:])):
                z, reset, n = np.split(array, 3)
                getattr(module, f"{name}_l0{suffix}").data = torch().from_numpy(
                    np.concatenate([reset, z, n]))
        x = torch().randn(20, 3, 4, generator=torch().Generator().manual_seed(5))
        with torch().no_grad():
            exact, _ = module(x)
        self.assertGreater(decibels(exact, net.calibrate(x).freeze()(x)[0]), W8H16)

    def test_what_a_node_may_not_have(self):
        try:
            from onnx import helper
        except ImportError:
            raise unittest.SkipTest("onnx is not installed") from None
        weights = {"W": np.ones((1, 6, 3)), "R": np.ones((1, 6, 2))}
        for attributes, sentence in (({"clip": 2.0}, "clips at 2"),
                                     ({"activations": ["Relu", "Tanh"]}, "activations"),
                                     ({"direction": "bidirectional"}, "must begin with 2")):
            node = helper.make_node("GRU", ["X", "W", "R"], ["Y"], hidden_size=2, **attributes)
            with self.assertRaisesRegex(qk.CallError, sentence):
                qk.StackedGRU.from_onnx(node, weights=weights)
        with self.assertRaisesRegex(qk.CallError, "R .'R'. is no initializer"):
            qk.StackedGRU.from_onnx(helper.make_node("GRU", ["X", "W", "R"], ["Y"]),
                                    weights={"W": weights["W"]})
        with self.assertRaisesRegex(qk.CallError, "is a LSTM node"):
            qk.StackedGRU.from_onnx(helper.make_node("LSTM", ["X"], ["Y"]))


if __name__ == "__main__":
    unittest.main()
