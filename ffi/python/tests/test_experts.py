"""Products with experts, against products of one row."""
import json
import os
import struct
import tempfile

from common import np, qk, unittest

E, N, K, T, TOP = 5, 32, 64, 6, 3
RNG = np.random.default_rng(3)
VALUES = RNG.standard_normal((E, N, K), dtype="f")
W = qk.quantize(VALUES, "nf4", group_size=32)
ALONE = [qk.quantize(VALUES[e], "nf4", group_size=32) for e in range(E)]
X = RNG.standard_normal((T, K), dtype="f")
ROUTING = RNG.integers(0, E, (T, TOP))
WEIGHT = RNG.random((T, TOP), dtype="f")


def rows(x, routing=ROUTING):
    return np.stack([[qk.linear(x[t] if x.ndim == 2 else x[t, j], ALONE[routing[t, j]])
                      for j in range(TOP)] for t in range(T)])


def write_deepseek(path):
    """E experts of three projections, random codes of FP4."""
    header, data = {}, b""
    for e in range(E):
        for name, n, k in (("w1", N, K), ("w2", K, N), ("w3", N, K)):
            for kind, dtype, columns in (("weight", "I8", k // 2), ("scale", "F8_E8M0", k // 32)):
                high = 256 if kind == "weight" else 130
                values = RNG.integers(high - 16 if high < 256 else 0, high, n * columns, "u1")
                header[f"m.experts.{e}.{name}.{kind}"] = {
                    "dtype": dtype, "shape": [n, columns],
                    "data_offsets": [len(data), len(data) + values.size]}
                data += values.tobytes()
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


class Experts(unittest.TestCase):
    def test_a_row_is_its_own_product(self):
        z = rows(X)
        np.testing.assert_array_equal(qk.experts(X, W, ROUTING), z)
        by_slot = RNG.standard_normal((T, TOP, K), dtype="f")
        np.testing.assert_array_equal(qk.experts(by_slot, W, ROUTING.tolist()), rows(by_slot))

    def test_slots_are_added_up(self):
        z = rows(X)
        expected = np.zeros((T, N))
        for j in range(TOP):
            expected += WEIGHT[:, j, None].astype("d") * z[:, j]
        y = qk.experts(X, W, ROUTING, weight=WEIGHT)
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
        plain = qk.experts(X, W, ROUTING, add_slots=True)
        np.testing.assert_allclose(plain, z.sum(1), rtol=1e-5, atol=1e-4)
        out = np.ones_like(y)
        self.assertIs(qk.experts(X, W, ROUTING, weight=WEIGHT, out=out, accumulate=True), out)
        np.testing.assert_array_equal(out, y + 1)
        wide_x, wide_y = np.zeros((T, K + 5), "f"), np.full((T, N + 3), 7, "f")
        wide_x[:, 2:2 + K], out = X, wide_y[:, 1:1 + N]
        self.assertIs(qk.experts(wide_x[:, 2:2 + K], W, ROUTING, weight=WEIGHT, out=out), out)
        np.testing.assert_array_equal(out, y)
        self.assertTrue((wide_y[:, [0, -1]] == 7).all())

    def test_an_activation_joins_gate_and_up(self):
        z = rows(X).astype("d")
        for interleaved in (False, True):
            gate, up = (z[..., ::2], z[..., 1::2]) if interleaved else np.split(z, 2, axis=-1)
            silu = gate / (1 + np.exp(-gate)) * up
            y = qk.experts(X, W, ROUTING, activation="silu", interleaved=interleaved)
            np.testing.assert_allclose(y, silu, rtol=2e-6, atol=1e-7)
            low, near = np.minimum(gate, 1.5), np.clip(up, -1.5, 1.5)
            clamped = low / (1 + np.exp(-1.702 * low)) * (near + 1)
            y = qk.experts(X, W, ROUTING, activation="swiglu_clamped", limit=1.5,
                           interleaved=interleaved)
            np.testing.assert_allclose(y, clamped, rtol=2e-6, atol=1e-7)

    def test_ids_that_are_none(self):
        routing = ROUTING.copy()
        routing[0, 1], routing[2, 0] = -1, E
        y = qk.experts(X, W, routing)
        self.assertTrue((y[0, 1] == 0).all() and np.isnan(y[2, 0]).all())
        z = rows(X)
        np.testing.assert_array_equal(y[3:], z[3:])

    def test_ids_of_any_width(self):
        y = qk.experts(X, W, ROUTING)
        for width in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4"):
            np.testing.assert_array_equal(qk.experts(X, W, ROUTING.astype(width)), y, width)
        for far, width in ((2**32, "i8"), (2**32 + 1, "u8"), (2**63, "u8"), (2**31, "u4")):
            routing = ROUTING.astype(width)
            routing[0, 0] = far
            self.assertTrue(np.isnan(qk.experts(X, W, routing)[0, 0]).all(), (far, width))
        routing = ROUTING.copy()
        routing[0, 0] = -2**32
        self.assertFalse(qk.experts(X, W, routing)[0, 0].any())

    def test_what_is_wrong_is_named(self):
        odd = qk.quantize(VALUES[:, :15], "nf4", group_size=32)
        for change, sentence in (({"activation": "relu"}, "^activation: is 'relu'"),
                                 ({"activation": ["silu"]}, r"^activation: is \['silu'\]"),
                                 ({"limit": "7"}, "^limit: is '7', accepted is a number"),
                                 ({"alpha": None}, "^alpha: is None, accepted is a number"),
                                 ({"expert": [[0], [1, 2]]}, "^expert: rows of different lengths"),
                                 ({"weight": [["a"]] * T}, "^weight: is .U1, accepted are numbers"),
                                 ({"expert": ROUTING[0]}, r"^expert: is \[3\]"),
                                 ({"expert": ROUTING * 0.5}, "^expert: is float64"),
                                 ({"w": ALONE[0]}, r"^w: is \[32, 64\]"),
                                 ({"accumulate": True}, "^out: "),
                                 ({"x": X[:, :32]}, r"x: is "),
                                 ({"w": odd, "activation": "silu"}, "n is 15, must be even"),
                                 ({"out": np.empty((T, N), "f")}, r"^out: is \[6, 32\]")):
            with self.assertRaisesRegex(qk.CallError, sentence):
                qk.experts(**{"x": X, "w": W, "expert": ROUTING, **change})

    def test_no_tokens_are_a_result(self):
        none = np.empty((0, K), "f")
        routing = np.empty((0, 2), np.int64)
        self.assertEqual(qk.experts(none, W, routing).shape, (0, 2, N))
        y = qk.experts(none, W, routing, weight=np.empty((0, 2)), activation="silu")
        self.assertEqual(y.shape, (0, N // 2))

    def test_experts_of_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.safetensors")
            write_deepseek(path)
            with qk.load(path) as file:
                self.check_file(file)

    def check_file(self, file):
        gate, up, down = ("m.experts.*.w1", "m.experts.*.w3", "m.experts.*.w2")
        self.assertEqual([(layer.name, layer.shape) for layer in file.expert_layers],
                         [(gate, (E, N, K)), (down, (E, K, N)), (up, (E, N, K))])
        both, alone = file.experts(gate, up), file.experts(down)
        self.assertEqual((both.shape, alone.shape), ((E, 2 * N, K), (E, K, N)))
        y = qk.experts(X[:E], both, np.arange(E)[:, None])
        for e in range(E):
            rows = [qk.linear(X[e:e + 1], file[name.replace("*", str(e))])[0]
                    for name in (gate, up)]
            np.testing.assert_array_equal(y[e, 0], np.concatenate(rows))
        with self.assertRaises(KeyError):
            file.experts("m.experts.0.w1")
        with self.assertRaisesRegex(qk.Error, "^up: "):
            file.experts(gate, down)


if __name__ == "__main__":
    unittest.main()
