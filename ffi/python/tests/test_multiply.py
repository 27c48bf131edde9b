"""Products as data: lists, plans and traces."""
from common import np, qk, unittest

X = np.linspace(-1, 1, 5 * 128, dtype="f").reshape(5, 128)
W = qk.quantize(np.outer(np.linspace(-1, 1, 64, dtype="f"), X[1]), "nf4", group_size=64)
V = qk.quantize(np.outer(np.linspace(-1, 1, 24, dtype="f"), X[2, :64]), "u4_affine",
                group_size=32)
BIAS = np.linspace(0, 1, 24, dtype="f")


class Lists(unittest.TestCase):
    def test_a_list_gives_what_each_gives(self):
        layer = qk.Layer(V, BIAS)
        inner = np.empty((5, 64), "f")
        y = qk.multiply([qk.Product(X, W, out=inner), (inner, layer), (X[0], W)])
        np.testing.assert_array_equal(y[0], qk.linear(X, W))
        np.testing.assert_array_equal(y[1], qk.linear(inner, V, BIAS))
        np.testing.assert_array_equal(y[2], qk.linear(X[0], W))
        self.assertIs(y[0], inner)
        self.assertEqual(qk.multiply([]), [])

    def test_gradients_are_transposed_products(self):
        g = np.linspace(-2, 2, 3 * 64, dtype="f").reshape(3, 64)
        out = np.ones((3, 128), "f")
        y, z = qk.multiply([qk.Product(g, W, transposed=True),
                            qk.Product(g, W, out=out, transposed=True, accumulate=True)])
        np.testing.assert_allclose(y, g @ W.dequantize(), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(out, 1 + y)
        self.assertIs(z, out)
        with self.assertRaisesRegex(qk.CallError, "accumulates, and has no out"):
            qk.multiply([qk.Product(g, W, accumulate=True)])

    def test_no_rows_are_a_result(self):
        none = np.empty((0, 128), "f")
        for x in (none, none.astype(np.float16), np.empty((2, 0, 128), "f"), np.ones((4, 128))[:0]):
            y = qk.linear(x.astype(x.dtype if x.dtype != "d" else "f"), W)
            self.assertEqual(y.shape, (*x.shape[:-1], 64))
        self.assertEqual(qk.prepare(none, W)().shape, (0, 64))
        y = qk.multiply([(none, W), (X, W), qk.Product(np.empty((0, 64), "f"), W, transposed=True)])
        self.assertEqual([each.shape for each in y], [(0, 64), (5, 64), (0, 128)])
        np.testing.assert_array_equal(y[1], qk.linear(X, W))
        self.assertEqual(qk.explain(none, W), ("nothing", (0, 0), 0, ""))
        self.assertEqual(qk.asarray(none).numpy().shape, (0, 128))
        with self.assertRaisesRegex(qk.CallError, "^w: k is 128, x has k 127"):
            qk.linear(np.empty((0, 127), "f"), W)
        with self.assertRaisesRegex(qk.CallError, r"^desc: shape\[0\] is 0, must be at least 1"):
            qk.quantize(none, "nf4")

    def test_it_grows_a_modes_workspace(self):
        with qk.Context(mode="int8_activations"):
            packed = W.repack()
            y, = qk.multiply([(X, packed)])
            np.testing.assert_array_equal(y, qk.linear(X, packed))

    def test_a_wrong_product_is_named_and_none_runs(self):
        out = np.full((5, 64), 7, "f")
        with self.assertRaisesRegex(qk.CallError, r"^products\[1\]: bias: is 1 x 24, y has n 64"):
            qk.multiply([(X, W, None, out), (X, W, BIAS)])
        self.assertTrue((out == 7).all())
        for wrong in (X, (X,), (X, W, None, None, None), [X, W], None):
            with self.assertRaisesRegex(qk.CallError, r"^products\[1\]: is "):
                qk.multiply([(X, W), wrong])
        with qk.Context() as other:
            tensor = qk.asarray(X, context=other)
        with self.assertRaisesRegex(qk.CallError, r"^products\[1\]: is on "):
            qk.multiply([(X, W), (tensor, W)])


class Plans(unittest.TestCase):
    def test_what_is_explained_is_what_runs(self):
        for sets in (None, "generic"):
            for mode in (None, "int8_activations", "bf16_products"):
                told = []
                with qk.Context(mode=mode, instruction_sets=sets, trace=told.append):
                    packed = W.repack()
                    for x, w in ((X, W), (X[0], W), (X, packed), (X[0], packed), (X[0], V)):
                        x = np.ascontiguousarray(x[..., :w.shape[1]])
                        plan = qk.explain(x, w)
                        count = len(told)
                        qk.linear(x, w)
                        self.assertEqual(len(told), count + 1)
                        m = x.size // w.shape[1]
                        self.assertEqual(told[-1][:3], ("multiply", plan.kernel, (m, *w.shape)))
                        self.assertGreaterEqual(told[-1].seconds, 0)
                        self.assertEqual(told[-1].status, 0)
                        self.assertIsInstance(plan.reason, str)
                        exact = (1, 2) if m <= 2 else (3, None)
                        # Fewer rows than the 8 that bf16 mode rounds weights for may run exact.
                        of_mode = {"int8_activations": [(1, None)],
                                   "bf16_products": [(1, 7), (3, 7)]}.get(mode, [])
                        self.assertIn(plan.batch, [exact, *of_mode])

    def test_what_is_refused_is_refused(self):
        with self.assertRaisesRegex(qk.CallError, "^w: k is 64, x has k 128"):
            qk.explain(X, V)
        with qk.Context(mode="int8_activations", workspace_bytes=0):
            plan = None
            try:
                plan = qk.explain(X, W.repack())
            except qk.ResourceError as error:
                self.assertRegex(str(error), "^workspace: the product needs [0-9]+ bytes, the "
                                 "context has 0")
            if plan is not None:  # without vector instructions
                self.assertEqual((plan.kernel, plan.workspace_bytes), ("generic int8", 0))

    def test_a_trace_that_fails_fails_alone(self):
        def broken(_trace):
            raise RuntimeError("broken")
        with qk.Context(trace=broken), self.assertWarnsNothing():
            np.testing.assert_array_equal(qk.linear(X, W).shape, (5, 64))

    def assertWarnsNothing(self):
        """What Python prints of an exception in a callback goes to a hook, here to nothing."""
        import contextlib
        import sys

        @contextlib.contextmanager
        def hooked():
            seen, before = [], sys.unraisablehook
            sys.unraisablehook = seen.append
            try:
                yield
            finally:
                sys.unraisablehook = before
            self.assertEqual([str(s.exc_value) for s in seen], ["broken"])
        return hooked()


if __name__ == "__main__":
    unittest.main()
