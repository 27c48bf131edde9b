"""qk.torch.QuantGRU: the exported GRU's bits, and gradients. Before a release; needs PyTorch."""
import copy
import io
import pickle
import random
import sys
from unittest import mock

from common import np, qk, unittest

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
import qk.torch
from torch.nn.utils import rnn

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

    def test_any_x(self):
        _, layer = make()
        wide = torch.randn(9, 3, 10)
        layer.calibrate(wide[..., :5])
        for x in (wide[..., ::2], wide[..., :5].transpose(0, 1), wide[:1, :, :5].expand(9, 3, 5),
                  wide[:, :, :5].half(), wide[:1, :1, :5].bfloat16(), wide[..., 5:].double()):
            x = x.detach().requires_grad_()
            y, _ = layer(x)
            codes = np.ascontiguousarray(x.detach().float().numpy())
            self.assertTrue(torch.equal(y, torch.from_numpy(layer.export().run(codes)).to(x.dtype)))
            y.float().square().sum().backward()
            self.assertEqual((y.dtype, x.grad.dtype), (x.dtype, x.dtype))
            self.assertGreater(float(x.grad.float().abs().sum()), 0)

    def test_chunks_of_time_are_the_whole(self):
        _, layer = make()
        x = torch.randn(9, 3, 5)
        y, h_n = layer.calibrate(x)(x)
        first, h = layer(x[:4])
        second, last = layer(x[4:], h)
        self.assertTrue(torch.equal(torch.cat((first, second)), y) and torch.equal(last, h_n))

    def test_without_gradients_no_gates_are_made(self):
        _, layer = make()
        x = torch.randn(9, 3, 5)
        layer.calibrate(x)
        with mock.patch("qk._gru.GRUState.run_gates", side_effect=AssertionError):
            with torch.no_grad():
                layer(x)
            with torch.inference_mode():
                layer(x)
            layer.requires_grad_(False)(x)
            with self.assertRaises(AssertionError):
                layer(x.requires_grad_())

    def test_packed_sequences(self):
        draw = random.Random(5)
        for seed in range(12):
            dense, layer = make(seed=seed, batch_first=seed % 2 == 1)
            lengths = [draw.randint(1, 9) for _ in range(4)]
            x, h0 = torch.randn(max(lengths), 4, 5), torch.rand(1, 4, 12) - 0.5
            sort = seed % 3 == 0
            packed = rnn.pack_padded_sequence(x, sorted(lengths)[::-1] if sort else lengths,
                                              enforce_sorted=sort)
            y, h_n = layer.calibrate(packed, h0)(packed, h0)
            theirs, _ = dense(packed, h0)
            for mine, own in zip(y[1:], theirs[1:]):
                self.assertTrue(mine is own or torch.equal(mine, own))
            steps, lengths = rnn.pad_packed_sequence(y)
            y.data.sum().backward()
            found = {name: part.grad.clone() for name, part in layer.named_parameters()}
            layer.zero_grad()
            for i, length in enumerate(lengths.tolist()):
                alone = x[:length, i:i + 1]
                own, last = layer(alone.transpose(0, 1) if layer.batch_first else alone,
                                  h0[:, i:i + 1])
                self.assertTrue(torch.equal(steps[:length, i], own.reshape(length, 12)))
                self.assertTrue(torch.equal(h_n[:, i], last[:, 0]))
                own.sum().backward()
            for name, part in layer.named_parameters():
                torch.testing.assert_close(part.grad, found[name], rtol=1e-4, atol=1e-4)

    def test_padding_is_not_seen(self):
        _, layer = make()
        x = torch.randn(9, 2, 5)
        layer.calibrate(rnn.pack_padded_sequence(x, [9, 3]))
        self.assertEqual(layer.ranges.samples, 12)
        alone = make()[1].calibrate(x[:, :1]).calibrate(x[:3, 1:])
        self.assertEqual((layer.ranges.min, layer.ranges.max),
                         (alone.ranges.min, alone.ranges.max))


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


    def test_stay_finite_whatever_x_is(self):
        _, layer = make()
        x = torch.randn(9, 3, 5)
        layer.calibrate(x)
        x[0, 0, 0], x[1, 1, 1], x[2, 2, 2] = float("nan"), float("inf"), -1e30
        layer(x)[0].sum().backward()
        for part in layer.parameters():
            self.assertTrue(bool(part.grad.isfinite().all()))

    def test_only_what_needs_them_gets_them(self):
        _, layer = make()
        x, h0 = torch.randn(9, 3, 5), torch.zeros(1, 3, 12, requires_grad=True)
        layer.calibrate(x)
        layer.weight_hh_l0.requires_grad_(False)
        _, h_n = layer(x, h0)
        h_n.sum().backward()
        self.assertIsNone(layer.weight_hh_l0.grad)
        for part in (layer.weight_ih_l0, layer.bias_hh_l0, h0):
            self.assertGreater(float(part.grad.abs().sum()), 0)

    def test_are_the_same_under_autocast(self):
        _, layer = make()
        x = torch.randn(9, 3, 5)
        found = []
        for on in (False, True):
            layer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=on):
                layer.calibrate(x)(x)[0].sum().backward()
            found.append([part.grad.clone() for part in layer.parameters()])
        self.assertTrue(all(map(torch.equal, *found)))

    def test_are_the_same_compiled_and_recomputed(self):
        _, layer = make()
        x = torch.randn(9, 3, 5, requires_grad=True)
        layer.calibrate(x)
        found = []
        for call in (layer, torch.compile(layer),
                     lambda x: torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)):
            y, _ = call(x)
            found.append([y, *torch.autograd.grad(y.sum(), [x, *layer.parameters()])])
        for other in found[1:]:
            self.assertTrue(all(map(torch.equal, found[0], other)))


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

    def test_learns_what_the_float_layer_learns(self):
        """The sum of the marked numbers of a sequence, from the same first weights and data."""
        errors = []
        for preset in (None, "w8a8", "w8h16"):
            dense, layer = make(preset or "w8a8", 2, 24)
            if preset is None:
                layer = dense
            head = torch.nn.Linear(24, 1)
            steps = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=5e-3)
            for step in range(200):
                layer.observing = step < 150
                x = torch.rand(20, 64, 2)
                x[..., 1] = (x[..., 1] > 0.8).float()
                wanted = x.prod(2).sum(0) / 3
                loss = (head(layer(x)[1][0])[:, 0] - wanted).square().mean()
                steps.zero_grad()
                loss.backward()
                steps.step()
            errors.append(float(loss.detach()))
        self.assertLess(errors[0], 0.03)
        self.assertLess(max(errors[1:]), 2 * errors[0])


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
        for half in (layer.half(), layer.float()):  # ranges keep their bits
            half(x.to(half.weight_hh_l0.dtype))[0].sum().backward()
        self.assertEqual(layer.get_extra_state().tolist(), other.get_extra_state().tolist())
        fresh = qk.torch.QuantGRU(5, 12)
        fresh.load_state_dict(dense.state_dict(), strict=False)
        self.assertEqual(fresh.calibrate(x).export().tobytes(), other.export().tobytes())

    def test_state_is_tensors_alone(self):
        dense, layer = make()
        for seen in (False, True):
            self.assertTrue(all(isinstance(part, torch.Tensor)
                                for part in layer.state_dict().values()))
            layer.calibrate(torch.randn(6, 2, 5))
        with_sums, plain = layer.ranges, layer.ranges._replace(x_sum=None, h_sum=None)
        for ranges in (with_sums, plain, None):
            layer.ranges = ranges
            other = qk.torch.QuantGRU(5, 12)
            other.load_state_dict(layer.state_dict())
            self.assertEqual(str(other.ranges), str(ranges))
        self.assertFalse(qk.torch.QuantGRU.from_torch(dense.eval()).training)

    def test_bad_input_gets_a_sentence(self):
        _, layer = make()
        x = torch.randn(3, 2, 5)
        calibrated = make()[1].calibrate(x)
        for sentence, call in (
                ("has no ranges yet", lambda: layer(torch.randn(3, 2, 5))),
                ("must be 2 or 3 dimensions", lambda: layer.calibrate(torch.randn(3, 2, 6))),
                (r"h0: is \[2, 12\], must be \[1, 2, 12\]",
                 lambda: layer(torch.randn(3, 2, 5), torch.randn(2, 12))),
                ("x: is torch.int64, accepted are floating", lambda: layer(x.long())),
                ("x: is list", lambda: layer([1.0])),
                ("hidden_size: is 0, accepted are 1 to 65535", lambda: qk.torch.QuantGRU(5, 0)),
                ("preset: is 'w4'", lambda: qk.torch.QuantGRU(5, 5, preset="w4")),
                ("options: is 'headroom', must be a tuple",
                 lambda: qk.torch.QuantGRU(5, 5, options="headroom")),
                ("options: is 'head'", lambda: qk.torch.QuantGRU(5, 5, options=("head",))),
                (r"_extra_state is \[3\], must have 0, 21 or 38 numbers",
                 lambda: layer.set_extra_state(torch.zeros(3))),
                ("w_ih: is on the device meta", lambda: layer.to("meta").calibrate(
                    torch.randn(3, 2, 5))),
                ("w_ih: .*without memory", lambda: torch.func.grad(
                    lambda w: torch.func.functional_call(calibrated, w, x)[0].sum())(
                        {name: part.detach() for name, part in calibrated.named_parameters()})),
                ("is a torch.nn.LSTM",
                 lambda: qk.torch.QuantGRU.from_torch(torch.nn.LSTM(5, 12)))):
            with self.assertRaisesRegex(ValueError, sentence):
                call()


if __name__ == "__main__":
    torch.set_num_threads(1)  # layers this small only wait for a second one
    unittest.main()
