"""Slices of wider arrays as x and y of products: used where they are, and nothing between rows."""
from common import np, qk, torch, unittest

RANDOM = np.random.default_rng(9)


def weight():
    return qk.quantize(RANDOM.standard_normal((24, 64)).astype("f"))


class Slices(unittest.TestCase):
    def test_numpy(self):
        w, wide = weight(), RANDOM.standard_normal((6, 2, 200)).astype("f")
        for x in (wide[:, 0, 3:67], wide[::2, 1, 3:67], wide[..., 5:69], wide[2:3, :, :64],
                  wide[::-1, 0, :64], wide[::2, :, :64], wide[0, 0, 7:71],
                  np.broadcast_to(wide[0, 0, :64], (3, 64)), wide[0, :, 0:128:2]):
            kept = np.full((*x.shape[:-1], 40), 7, "f")
            y = kept[..., 9:33]
            self.assertIs(qk.linear(x, w, out=y), y)
            np.testing.assert_array_equal(y, qk.linear(x.copy(), w))
            self.assertTrue((kept[..., :9] == 7).all() and (kept[..., 33:] == 7).all())
        kept = np.zeros((6, 40), "f")
        call = qk.prepare(wide[:, 0, 3:67], w, out=kept[:, :24])
        wide += 1  # seen: nothing was copied
        np.testing.assert_array_equal(call(), qk.linear(wide[:, 0, 3:67].copy(), w))
        g, kept = wide[:, 1, 8:32], np.ones((6, 70), "f")
        qk.multiply([qk.Product(g, w, None, kept[:, 2:66], transposed=True, accumulate=True)])
        exact = 1 + g.astype("d") @ w.dequantize().astype("d")
        np.testing.assert_allclose(kept[:, 2:66], exact, atol=1e-4)
        self.assertTrue((kept[:, [0, 1, 66, 69]] == 1).all())

    def test_torch(self):
        w, wide = weight(), torch().randn(5, 100)
        kept = torch().zeros(5, 40)
        self.assertEqual(qk.linear(wide[:, 2:66], w, out=kept[:, 8:32]).data_ptr(),
                         kept[:, 8:32].data_ptr())
        whole = qk.linear(wide[:, 2:66].contiguous(), w)
        self.assertTrue(torch().equal(kept[:, 8:32], whole) and not kept[:, :8].any())
        for x in (wide.T[:64].T, torch()._neg_view(wide[:, 2:66]), wide[:1, 2:66].expand(4, 64)):
            self.assertTrue(torch().equal(qk.linear(x, w), qk.linear(x.clone().contiguous(), w)))
        with self.assertRaisesRegex(qk.CallError, "out: is not row-major with its rows equally"):
            qk.linear(wide[:, 2:66], w, out=torch().zeros(24, 5).T)


if __name__ == "__main__":
    unittest.main()
