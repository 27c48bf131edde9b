"""qk.torch.QuantGRU: the exported GRU's bits, and gradients. Before a release; needs PyTorch."""
import copy
import io
import pickle
import random
import sys

from common import qk, unittest

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
import qk.torch

PRESETS = ("w8a8", "w8h16", "w8a16", "w16a16")


def make(preset="w8h16", c=5, h=12, options=(), seed=1, **more):
    torch.manual_seed(seed)
    dense = torch.nn.GRU(c, h, **more)
    return dense, qk.torch.QuantGRU.from_torch(dense, preset=preset, options=options)


class Bits(unittest.TestCase):
    def test_forward_is_the_exported_grus(self):
        draw = random.Random(19)
        for seed in range(60):
            c, h, t, b = (draw.randint(1, top) for top in (40, 48, 20, 9))
            options = draw.choice([(), ("uniform_tables",), ("bias_correction", "headroom")])
            _, layer = make(PRESETS[seed % 4], c, h, options, seed, bias=seed % 5 != 0)
            x, h0 = 2 * torch.randn(t, b, c), torch.randn(1, b, h)
            start = h0 if seed % 2 else None
            layer.calibrate(x[: (t + 1) // 2], start)  # later steps may be cut
            y, h_n = layer(x, start)  # with gradients, by the gates
            with torch.no_grad():
                again = layer(x, start)[0]  # without, by the fast kernels
            expected = torch.from_numpy(
                layer.export().run(x.numpy(), None if start is None else start[0].numpy()))
            self.assertTrue(torch.equal(y.detach(), expected), (seed, layer))
            self.assertTrue(torch.equal(again, expected), (seed, layer))
            self.assertTrue(torch.equal(h_n[0].detach(), expected[-1]))

    def test_shapes_are_torchs(self):
        for batch_first in (False, True):
            dense, layer = make(batch_first=batch_first)
            x = torch.randn(7, 3, 5)
            layer.calibrate(x)
            for mine, theirs in zip(layer(x), dense(x)):
                self.assertEqual(mine.shape, theirs.shape)
            for mine, theirs in zip(layer(x[0]), dense(x[0])):
                self.assertEqual(mine.shape, theirs.shape)
        self.assertEqual(layer(x.bfloat16())[0].dtype, torch.bfloat16)


class Gradients(unittest.TestCase):
    def test_are_the_float_cells(self):
        dense, layer = make("w16a16", options=("uniform_tables",))
        x, h0, dy = torch.randn(11, 4, 5), torch.rand(1, 4, 12) - 0.5, torch.randn(11, 4, 12)
        layer.calibrate(x, h0)
        found = []
        for module in (layer, dense):
            inputs = [part.clone().requires_grad_() for part in (x, h0)]
            y, h_n = module(*inputs)
            ((y * dy).sum() + h_n.sum()).backward()
            found.append([part.grad for part in (*inputs, *(dict(module.named_parameters())[name]
                          for name, _ in dense.named_parameters()))])
        self.assertEqual(len(found[0]), 6)
        for mine, theirs in zip(*found):
            self.assertLess(float((mine - theirs).norm() / theirs.norm()), 2e-3)

    def test_are_those_of_a_twin_with_the_codes_values(self):
        """Wide steps: every value that a gradient needs differs from the float GRU's."""
        _, layer = make("w8a8", seed=4)
        x = torch.randn(9, 3, 5)
        layer.calibrate(x)
        layer(x)[0].square().sum().backward()
        mine = {name: part.grad.clone() for name, part in layer.named_parameters()}
        gru = layer.export()
        with gru.stream(3) as state:
            y, gates = (torch.from_numpy(part).double() for part in state.run_gates(x.numpy()))
        u, r, n, hh_n = gates.chunk(4, 2)
        before = torch.cat((torch.zeros_like(y[:1]), y[:-1]))
        matrix = layer.weight_hh_l0.detach().double()
        shift, zero = gru.scale("x")
        codes = (torch.round(x.double() * 2 ** shift) + zero).clamp(-128, 127)
        inputs, dh, sums = (codes - zero) / 2 ** shift, 0, [0, 0]
        for t in range(8, -1, -1):
            dh = dh + 2 * y[t]
            dn = dh * (1 - u[t]) * (1 - n[t] ** 2)
            dr = dn * hh_n[t] * r[t] * (1 - r[t])
            du = dh * (before[t] - n[t]) * u[t] * (1 - u[t])
            ih, hh = torch.cat((dr, du, dn), 1), torch.cat((dr, du, dn * r[t]), 1)
            sums = [sums[0] + ih.T @ inputs[t], sums[1] + hh.T @ before[t]]
            dh = dh * u[t] + hh @ matrix  # R's rounding: the bound below
        for name, expected in zip(("weight_ih_l0", "weight_hh_l0"), sums):
            self.assertLess(float((mine[name] - expected).norm() / expected.norm()), 1e-2)


class Training(unittest.TestCase):
    def test_the_error_falls_and_the_export_agrees(self):
        torch.manual_seed(7)
        layer = qk.torch.QuantGRU(2, 16, preset="w8a8")
        head = torch.nn.Linear(16, 1)
        layer.observing = True
        steps = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=1e-2)
        errors = []
        for step in range(150):
            x = torch.rand(12, 32, 2)
            loss = (head(layer(x)[1][0])[:, 0] - x[..., 0].mean(0)).square().mean()
            steps.zero_grad()
            loss.backward()
            steps.step()
            errors.append(float(loss.detach()))
            layer.observing = step < 100
        self.assertLess(sum(errors[-10:]), 0.1 * sum(errors[:10]))
        x = torch.rand(12, 8, 2)
        image = layer.eval().export().tobytes()
        copied = qk.GRU.from_model(qk.GRU.load(image).describe())
        self.assertEqual(copied.tobytes(), image)
        y = torch.from_numpy(copied(x.numpy()))
        self.assertTrue(torch.equal(layer(x)[0].detach(), y))


class Module(unittest.TestCase):
    def test_state_copies_and_pickles(self):
        dense, layer = make()
        x = torch.randn(6, 2, 5)
        layer.calibrate(x)
        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        file.seek(0)
        other = qk.torch.QuantGRU(5, 12)
        other.load_state_dict(torch.load(file))
        for twin in (other, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            self.assertEqual(twin.export().tobytes(), layer.export().tobytes())
        fresh = qk.torch.QuantGRU(5, 12)
        fresh.load_state_dict(dense.state_dict(), strict=False)
        self.assertEqual(fresh.calibrate(x).export().tobytes(), layer.export().tobytes())

    def test_bad_input_gets_a_sentence(self):
        _, layer = make()
        for sentence, call in (
                ("has no ranges yet", lambda: layer(torch.randn(3, 2, 5))),
                ("must be 2 or 3 dimensions", lambda: layer.calibrate(torch.randn(3, 2, 6))),
                (r"h0: is \[2, 12\], must be \[1, 2, 12\]",
                 lambda: layer(torch.randn(3, 2, 5), torch.randn(2, 12))),
                ("is a torch.nn.LSTM",
                 lambda: qk.torch.QuantGRU.from_torch(torch.nn.LSTM(5, 12)))):
            with self.assertRaisesRegex(ValueError, sentence):
                call()


if __name__ == "__main__":
    unittest.main()
