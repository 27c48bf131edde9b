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
                    packed_y, h_n = module(packed, h0)
                    y = rnn.pad_packed_sequence(packed_y, first, total_length=steps)[0]
                else:
                    y, h_n = module(x, h0)
            got, got_h = net.calibrate(x, h0, lengths).freeze()(x, h0, lengths)
            self.assertEqual((got.shape, got_h.shape), (y.shape, h_n.shape))
            for exact, integers in ((y, got), (h_n, got_h)):
                self.assertGreater(decibels(exact, integers), W16A16 if fine else W8H16,
                                   f"{i}: {module}")
            if ragged:
                self.check_packed(net, packed, h0, packed_y, (got, got_h), lengths)

    def check_packed(self, net, x, h0, theirs, plain, lengths):
        """torch's own packing of x gives the same bits, packed as torch packs its y."""
        rnn = torch().nn.utils.rnn
        packed, h_n = net(x, h0)
        for mine, own in zip(packed[1:], theirs[1:]):
            self.assertTrue(torch().equal(mine, own))
        y, counts = rnn.pad_packed_sequence(packed, net.batch_first,
                                            total_length=plain[0].shape[int(net.batch_first)])
        self.assertEqual(counts.tolist(), list(lengths))
        self.assertTrue(torch().equal(y, plain[0]) and torch().equal(h_n, plain[1]))
        with self.assertRaisesRegex(qk.CallError, "lengths: is given"):
            net(x, h0, lengths)


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

        def node(op_type="GRU", inputs=("X", "W", "R", "B"), **attributes):
            return helper.make_node(op_type, inputs, ["Y"], **attributes)

        def weights(w=(1, 6, 3), r=(1, 6, 2), b=(1, 12)):
            return {name: np.ones(shape) for name, shape in (("W", w), ("R", r), ("B", b))}

        for source, given, sentence in (
                (node(clip=2.0), weights(), "clips at 2"),
                (node(clip=0.0), weights(), "clips at 0"),
                (node(activations=["Relu", "Tanh"]), weights(), "activations"),
                (node(direction="sideways"), weights(), "direction 'sideways', accepted are"),
                (node(layout=2), weights(), "has layout 2, accepted are 0, 1"),
                (node(linear_before_reset=3), weights(), "has linear_before_reset 3"),
                (node(hidden_size=-2), weights(), "has hidden_size -2"),
                (node(hidden_size=3), weights(), r"W is \[1, 6, 3\], must be \[1, 9, 'c'\]"),
                (node(direction="bidirectional"), weights(), r"must be \[2, 6, 'c'\]"),
                (node(), weights(w=(6, 3)), r"W is \[6, 3\], must be \[1, 6, 'c'\]"),
                (node(), weights(w=()), r"W is \[\], must be \[1, 6, 'c'\]"),
                (node(hidden_size=2), weights(r=(1, 6, 4)), r"R .*must be \[1, 6, 2\]"),
                (node(), weights(b=(1, 11)), r"B is \[1, 11\], must be \[1, 12\]"),
                (node(), {**weights(), "W": "text"}, "weights.'W'.: is a str, accepted are"),
                (node(), {"W": weights()["W"]}, "R .'R'. is no initializer"),
                (node(inputs=("X",)), weights(), "has no input R"),
                (node("LSTM"), weights(), "is a LSTM node"),
                (None, weights(), "is a NoneType, accepted are a path"),
                (helper.make_model(helper.make_graph([node(domain="com.acme")], "one", [], [])),
                 weights(), "has 0 GRU nodes")):
            with self.assertRaisesRegex(qk.CallError, sentence):
                qk.StackedGRU.from_onnx(source, weights=given)
        qk.StackedGRU.from_onnx(node(activations=["sigmoid", "tanh"]), weights=weights())

    def test_files_that_onnx_cannot_read(self):
        try:
            import onnx
        except ImportError:
            raise unittest.SkipTest("onnx is not installed") from None
        made = model_of(onnx, W=np.ones((1, 96, 32)), R=np.ones((1, 96, 32)))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.onnx")
            onnx.save(made, path, save_as_external_data=True, location="data", size_threshold=0)
            qk.StackedGRU.from_onnx(path)
            os.remove(os.path.join(folder, "data"))
            for source in (path, onnx.load(path, load_external_data=False)):
                with self.assertRaisesRegex(qk.StorageError, "source: onnx cannot read '"):
                    qk.StackedGRU.from_onnx(source)
            with open(path, "wb") as file:
                file.write(b"no model" * 9)
            with self.assertRaisesRegex(qk.StorageError, "source: onnx cannot read '"):
                qk.StackedGRU.from_onnx(path)
            with self.assertRaises(FileNotFoundError):
                qk.StackedGRU.from_onnx(path + "2")

    def test_constants_that_are_not_kept(self):
        try:
            import onnx
        except ImportError:
            raise unittest.SkipTest("onnx is not installed") from None
        parts = {"W": np.ones((1, 6, 3)), "R": np.ones((1, 6, 2))}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            qk.StackedGRU.from_onnx(model_of(onnx, **parts, initial_h=np.zeros((1, 3, 2))))
        for name, values, argument in (("initial_h", np.ones((1, 3, 2)), "h0"),
                                       ("sequence_lens", np.ones(3), "lengths")):
            with self.assertWarnsRegex(UserWarning, f"{name} .* give it to calls as {argument}"):
                qk.StackedGRU.from_onnx(model_of(onnx, **parts, **{name: values}))


def model_of(onnx, **arrays):
    """A model of one GRU node whose inputs, but X, are constants."""
    names = [name if name in arrays else ""
             for name in ("W", "R", "B", "sequence_lens", "initial_h")]
    kinds = {"sequence_lens": np.int32}
    return onnx.helper.make_model(onnx.helper.make_graph(
        [onnx.helper.make_node("GRU", ["X", *names], ["Y"])], "one", [], [],
        [onnx.numpy_helper.from_array(array.astype(kinds.get(name, np.float32)), name)
         for name, array in arrays.items()]))


if __name__ == "__main__":
    unittest.main()
