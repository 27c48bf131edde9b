"""Products with experts, against products of one row."""
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

    def test_what_is_wrong_is_named(self):
        for change, sentence in (({"activation": "relu"}, "^activation: is 'relu'"),
                                 ({"expert": ROUTING[0]}, r"^expert: is \[3\]"),
                                 ({"expert": ROUTING * 0.5}, "^expert: is float64"),
                                 ({"w": ALONE[0]}, r"^w: is \[32, 64\]"),
                                 ({"accumulate": True}, "^out: "),
                                 ({"x": X[:, :32]}, r"x: is "),
                                 ({"out": np.empty((T, N), "f")}, r"^out: is \[6, 32\]")):
            with self.assertRaisesRegex(qk.CallError, sentence):
                qk.experts(**{"x": X, "w": W, "expert": ROUTING, **change})


if __name__ == "__main__":
    unittest.main()
