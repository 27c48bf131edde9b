"""GRUs in layers and directions: the composition is exact, lengths, other packages, copies."""
import copy
import os
import pickle
import tempfile

from common import np, qk, unittest
from qk._gru_reset_first import ResetFirstGRU
from qk._gru_weights import to_rzn

RNG = np.random.default_rng(11)


def random(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def weights(c, h):
    return [array * np.float32(0.4) for array in (
        random(3 * h, c), random(3 * h, h), random(3 * h), random(3 * h))]


def decibels(exact, got):
    exact, got = np.asarray(exact, np.float64), np.asarray(got, np.float64)
    return 10 * np.log10((exact ** 2).sum() / ((exact - got) ** 2).sum())


def in_double(parts, x, h0=None, reset_after=True):
    """The cell as docs/gru.md writes it, [t,b,c] to [t,b,h]."""
    w, r, bw, br = (np.asarray(part, np.float64) for part in parts)
    size = r.shape[1]
    h = np.zeros((x.shape[1], size)) if h0 is None else np.asarray(h0, np.float64)
    wr, wz, wn = (slice(i * size, (i + 1) * size) for i in range(3))
    y = []
    for row in x.astype(np.float64):
        def gate(rows):
            return 1 / (1 + np.exp(-(row @ w[rows].T + bw[rows] + h @ r[rows].T + br[rows])))
        u, reset = gate(wz), gate(wr)
        hidden = reset * (h @ r[wn].T + br[wn]) if reset_after else \
            (reset * h) @ r[wn].T + br[wn]
        n = np.tanh(row @ w[wn].T + bw[wn] + hidden)
        h = u * h + (1 - u) * n
        y.append(h)
    return np.stack(y)


def make(layers=2, ways=2, c=5, h=6, **options):
    """A network and its GRUs, calibrated on `data`."""
    cells = [[qk.GRU(*weights(c if layer == 0 else ways * h, h)) for _ in range(ways)]
             for layer in range(layers)]
    data = random(40, 3, c)
    return qk.StackedGRU(cells, **options), data


class Stack(unittest.TestCase):
    def test_is_its_grus_one_by_one(self):
        net, x = make()
        net.calibrate(x).freeze()
        h0 = random(4, 3, 6) * np.float32(0.3)
        y, h_n = net(x, h0)
        inputs, last = x, []
        for layer, cells in enumerate(net.cells):
            outputs = []
            for side, gru in enumerate(cells):
                with gru.stream(3) as state:
                    state.write(h0[2 * layer + side])
                    run = state(np.ascontiguousarray(inputs[::-1]) if side else inputs)
                    last.append(state.read())
                outputs.append(run[::-1] if side else run)
            inputs = np.ascontiguousarray(np.concatenate(outputs, axis=2))
        np.testing.assert_array_equal(y, inputs)
        np.testing.assert_array_equal(h_n, np.stack(last))

    def test_lengths_are_sequences_of_their_own(self):
        for reverse, ways in ((False, 2), (False, 1), (True, 1)):
            net, x = make(ways=ways, reverse=reverse)
            lengths = [40, 1, 23]
            y_float, _ = net.calibrate(x, lengths=lengths).run_float(x, lengths=lengths)
            net.freeze()
            y, h_n = net(x, lengths=lengths)
            self.assertGreater(decibels(y_float, y), 29.5)
            for i, count in enumerate(lengths):
                alone, h_alone = net(np.ascontiguousarray(x[:count, i]))
                np.testing.assert_array_equal(y[:count, i], alone)
                np.testing.assert_array_equal(h_n[:, i], h_alone)
                self.assertFalse(y[count:, i].any())
        h0 = random(2, 3, 6)
        np.testing.assert_array_equal(net(x, h0, lengths=[0, 4, 0])[1][:, 0], h0[:, 0])

    def test_padding_calibrates_nothing(self):
        net, x = make(layers=1, ways=1)
        padded = x.copy()
        padded[20:] = 1e6
        net.calibrate(padded, lengths=[20, 20, 20])
        self.assertLess(net.cells[0][0].ranges().max["x"], 10)

    def test_batch_first(self):
        net, x = make(batch_first=True)
        turned = np.ascontiguousarray(x.transpose(1, 0, 2))
        net.calibrate(turned).freeze()
        plain = qk.StackedGRU(net.cells)
        y, h_n = net(turned)
        other, other_h = plain(x)
        np.testing.assert_array_equal(y, other.transpose(1, 0, 2))
        np.testing.assert_array_equal(h_n, other_h)

    def test_copies_and_files(self):
        net, x = make()
        with self.assertRaisesRegex(TypeError, "frozen"):
            copy.deepcopy(net)
        with self.assertRaisesRegex(TypeError, "freeze"):
            pickle.dumps(net.cells[0][0])
        net.calibrate(x).freeze()
        y, _ = net(x)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "net.qkgs")
            net.save(path)
            for again in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)),
                          qk.StackedGRU.load(path), qk.StackedGRU.load(net.tobytes())):
                np.testing.assert_array_equal(again(x)[0], y)
        gru = net.cells[0][0]
        for again in (copy.copy(gru), copy.deepcopy(gru), pickle.loads(pickle.dumps(gru))):
            np.testing.assert_array_equal(again(x), gru(x))
        data = net.tobytes()
        names = (b"grus", b"bytes", b"reverse", b"batch_first")
        for damaged in (b"", data[:-1], data + b"x", data.replace(b"[[1, 1]", b"[[3,-1]"),
                        *(data.replace(name, b"other") for name in names)):
            with self.assertRaisesRegex(qk.StorageError, "no file of a qk.StackedGRU"):
                qk.StackedGRU.load(damaged)

    def test_refused(self):
        net, x = make()
        net.calibrate(x).freeze()
        for call, sentence in (
                (lambda: qk.StackedGRU([]), "at least one layer"),
                (lambda: qk.StackedGRU([net.cells[0], net.cells[0]]), "layer 1 is 5 -> 6"),
                (lambda: net(x[:, :, :4]), "x: is .40, 3, 4., must be"),
                (lambda: net(x, x), "h0: is"),
                (lambda: net(x, random(3, 4, 6)), "h0: is .3, 4, 6., must be .4, 3, 6."),
                (lambda: net(x[:, 0], random(4, 1, 6)), "h0: is .4, 1, 6., must be .4, 6."),
                (lambda: net(x, "none"), "h0: is a str, accepted are arrays of real"),
                (lambda: net(x * 1j), "x: is a ndarray, accepted are arrays of real"),
                (lambda: net(x, lengths=[1, 2]), "lengths: is .1, 2., must be 3"),
                (lambda: net(x, lengths=[1, 2, 2.5]), "lengths: is .1, 2, 2.5., must be 3 whole"),
                (lambda: net(x, lengths=[1, None, 2]), "lengths: is .1, None, 2., must be 3"),
                (lambda: net(x, lengths=[1, 2 ** 70, 2]), "must be 3 whole numbers from 0 to 40"),
                (lambda: qk.StackedGRU.from_torch(object()), "module: is a object, accepted is"),
                (lambda: net(x, lengths=[1, 2, 41]), "numbers from 0 to 40"),
                (lambda: qk.StackedGRU.from_keras([[x]]), "one has 1 arrays"),
                (lambda: net.run_float(x), "frozen|qk_gru_freeze")):
            with self.assertRaisesRegex(qk.Error, sentence):
                call()


class Keras(unittest.TestCase):
    def test_weights(self):
        c, h = 4, 6
        x = random(3, 50, c)
        for reset_after in (True, False):
            kernel, recurrent = random(c, 3 * h), random(h, 3 * h) * np.float32(0.4)
            bias = random(2, 3 * h) if reset_after else random(3 * h)
            sides = [kernel, recurrent, bias]
            net = qk.StackedGRU.from_keras([[*sides, *sides]], reset_after=reset_after)
            y, _ = net.calibrate(x).freeze()(x)
            both = bias if reset_after else [bias, np.zeros_like(bias)]
            parts = [to_rzn(kernel.T), to_rzn(recurrent.T), to_rzn(both[0]), to_rzn(both[1])]
            exact = in_double(parts, x.transpose(1, 0, 2), reset_after=reset_after)
            back = in_double(parts, x.transpose(1, 0, 2)[::-1], reset_after=reset_after)[::-1]
            exact = np.concatenate([exact, back], 2).transpose(1, 0, 2)
            self.assertGreater(decibels(exact, y), 29.5, reset_after)


class ResetFirst(unittest.TestCase):
    def make(self, **options):
        self.parts, self.x = weights(5, 7), random(60, 4, 5)
        cell = ResetFirstGRU(*self.parts, **options)
        cell.calibrate(self.x)
        return cell

    def test_float_and_every_preset(self):
        for preset, floor in (("w8a8", 15), ("w8h16", 29.5), ("w8a16", 29.5), ("w16a16", 29.5)):
            cell = self.make(preset=preset)
            exact = in_double(self.parts, self.x, reset_after=False)
            np.testing.assert_allclose(cell.run_float(self.x), exact, atol=1e-6)
            cell.freeze()
            self.assertGreater(decibels(exact, cell.run(self.x)), floor, preset)

    def test_mse_is_refused(self):
        with self.assertRaisesRegex(qk.UnsupportedError, "calibration: 'mse'"):
            self.make(calibration="mse")

    def test_it_is_not_the_other_cell(self):
        cell = self.make()
        cell.freeze()
        other = in_double(self.parts, self.x)
        self.assertLess(decibels(other, cell.run(self.x)), 25)

    def test_any_split_gives_the_same_bits(self):
        cell = self.make()
        cell.freeze()
        whole = cell.run(self.x)
        parts = [cell.run(self.x[:23]), cell.run(self.x[23:], whole[22])]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
        for i in range(4):
            np.testing.assert_array_equal(
                cell.run(np.ascontiguousarray(self.x[:, i:i + 1]))[:, 0], whole[:, i])
        again = qk.StackedGRU.load(qk.StackedGRU([[cell]]).tobytes())
        np.testing.assert_array_equal(again(self.x)[0], whole)


if __name__ == "__main__":
    unittest.main()
