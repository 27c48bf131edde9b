"""What must not cross into C unseen: copies of handles, too large integers, text with zeros."""
import copy
import pickle
import tempfile

from common import GOLDEN, np, os, qk, unittest

from qk import _errors

X = np.linspace(-1, 1, 64, dtype="f")


def weight():
    return qk.quantize(np.outer(np.linspace(-1, 1, 8, dtype="f"), X), "nf4", group_size=64)


def frozen():
    gru = qk.GRU(np.ones((12, 3), "f"), np.ones((12, 4), "f"))
    return gru.calibrate(np.ones((5, 3), "f")).freeze()


class Copies(unittest.TestCase):
    def test_what_owns_a_handle_refuses_to_be_copied_and_says_what_to_do(self):
        gru = frozen()
        for owner, advice in ((weight(), "repack"), (qk.Context(threads=1), r"qk\.Context\(\)"),
                              (qk.load(GOLDEN / "dense"), r"qk\.load"),
                              (gru.stream(), r"gru\.stream")):
            name = f"^qk.{type(owner).__name__}: cannot be copied or pickled.*{advice}"
            for copied in (copy.copy, copy.deepcopy, pickle.dumps,
                           lambda owner: pickle.dumps(owner, 0)):
                with self.assertRaisesRegex(TypeError, name):
                    copied(owner)
                with self.assertRaisesRegex(TypeError, name):
                    copied([owner] if copied is not copy.copy else owner)

    def test_layers_share_their_weights_and_are_not_copied_deeply(self):
        layer = qk.Layer(weight(), np.ones(8, "f"))
        y, shared = layer(X), copy.copy(layer)
        self.assertIs(shared.weight, layer.weight)
        del layer
        np.testing.assert_array_equal(shared(X), y)
        for copied in (copy.deepcopy, pickle.dumps):
            with self.assertRaisesRegex(TypeError, "qk.Tensor: cannot be copied"):
                copied(shared)
        with self.assertRaises(TypeError):
            copy.deepcopy(qk.prepare(X, shared))

    def test_errors_survive_the_way_between_processes(self):
        for status in (110, 301, 502, 901):
            error = _errors.make_error(status, "x: is 3")
            for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
                self.assertIs(type(again), type(error))
                self.assertEqual((again.status, again.name, str(again)),
                                 (status, error.name, "x: is 3"))

    def test_handles_are_given_back_once(self):
        tensor = weight()
        tensor.close()
        tensor.close()
        del tensor
        with qk.load(GOLDEN / "dense") as checkpoint:
            pass
        with self.assertRaisesRegex(qk.CallError, "checkpoint '.*dense'.*: is closed"):
            list(checkpoint)
        with qk.Context(threads=1) as context:
            pass
        context.close()
        with self.assertRaisesRegex(qk.CallError, "context: is closed"):
            context.synchronize()
        with self.assertRaisesRegex(qk.CallError, "context: is closed"), context:
            qk.linear(X, weight())


    def test_the_innermost_context_is_the_current_one(self):
        outer, inner = qk.Context(threads=1), qk.Context(threads=1)
        with outer:
            with inner:
                self.assertIs(qk.current_context(), inner)
                with outer:
                    self.assertIs(qk.current_context(), outer)
                self.assertIs(qk.current_context(), inner)
            self.assertIs(qk.current_context(), outer)
        self.assertNotIn(qk.current_context(), (outer, inner))


class Integers(unittest.TestCase):
    """Every integer that a caller gives: past C's width it would be taken for a small one."""

    def each(self):
        w, gru, x = weight(), frozen(), np.ones((8, 64), "f")
        float_gru = qk.GRU(np.ones((12, 3), "f"), np.ones((12, 4), "f"))
        state = gru.stream
        return [  # argument, how many bits C has for it, the call, an integer that it takes
            ("group_size", 32, lambda i: qk.quantize(x, group_size=i), 64),
            ("group_size", 32, lambda i: qk.Tensor.empty((4, 64), "nf4", scale="f32",
                                                         group_size=i), 64),
            ("scale_group_size", 32, lambda i: qk.Tensor.empty(
                (4, 64), "nf4", scale="lut8", group_size=64, scale_group_size=i), 256),
            (r"shape\[0\]", 64, lambda i: qk.Tensor.empty((i, 4)), 2),
            (r"shape\[1\]", 64, lambda i: qk.Tensor.empty((4, i)), 2),
            ("format", 32, lambda i: qk.Tensor.empty((4, 64), i), 1),
            ("threads", 32, lambda i: qk.Context(threads=i), 1),
            ("index", 32, lambda i: qk.Context(index=i), 0),
            ("index", 32, lambda i: qk.current_context("cpu", i), 0),
            ("index", 32, lambda i: w.to_device("cpu", i), 0),
            ("index", 32, lambda i: qk.load(GOLDEN / "dense", index=i), 0),
            ("workspace_bytes", 64, lambda i: qk.Context(workspace_bytes=i), 4096),
            ("stream", 64, lambda i: qk.Context(stream=i), 0),
            ("stream", 64, lambda i: qk.Context().set_stream(i), 0),
            ("m", 64, w.workspace_bytes, 3),
            ("bits", 32, lambda i: float_gru.set_quant("w", bits=i, symmetric=True), 8),
            ("granularity", 32, lambda i: float_gru.set_quant("w", bits=8, symmetric=True,
                                                              granularity=i), 1),
            ("channel", 32, lambda i: gru.scale("w", i), 1),
            ("tensor", 32, lambda i: gru.scale(i), 0),
            ("batch", 32, state, 2),
            ("batch", 32, gru.workspace_bytes, 2),
            ("t_max", 64, lambda i: gru.workspace_bytes(1, i), 2),
            ("preset", 32, lambda i: qk.GRU(np.ones((12, 3)), np.ones((12, 4)), preset=i), 2),
        ]

    def test_integers_that_c_has_no_room_for_are_refused(self):
        for name, bits, call, good in self.each():
            for value in (good + 2 ** bits, good + 2 ** 64, good - 2 ** bits, 2 ** 100,
                          -2 ** 63 - 1, np.uint64(2 ** 64 - 1) if bits == 32 else 2 ** 65):
                with self.subTest(name=name, value=value):
                    with self.assertRaisesRegex(qk.CallError, f"^{name}: is {value}, accepted"):
                        call(value)

    def test_other_numbers_are_refused_and_other_integers_are_taken(self):
        for name, _, call, good in self.each():
            for value in (float(good), True, np.True_, np.float32(good), None, "7", b"7", [good]):
                if value is None and name in ("stream", "workspace_bytes") or \
                        value == "7" and name in ("format", "tensor", "preset"):
                    continue
                with self.subTest(name=name, value=value):
                    with self.assertRaisesRegex(qk.CallError, f"^{name}: is "):
                        call(value)
            for value in (good, np.int64(good), np.uint8(good % 256) if good < 256 else good,
                          np.array(good)):
                with self.subTest(name=name, value=value):
                    call(value)

    def test_a_tensor_of_the_cell_is_no_other_constant(self):
        for name in ("w8a8", "save", "", "W", "rzn"):
            with self.assertRaisesRegex(qk.CallError, f"tensor: is '{name}', accepted are x, h, w"):
                frozen().scale(name)

    def test_an_option_given_twice_is_given_once(self):
        arrays = np.ones((12, 3), "f"), np.ones((12, 4), "f")
        images = [qk.GRU(*arrays, options=options).calibrate(np.ones((5, 3), "f")).freeze()
                  .tobytes() for options in (("headroom",), ("headroom", "headroom"))]
        self.assertEqual(*images)


class Text(unittest.TestCase):
    ZERO, HALF = "a\0b", "a\ud800"

    def refused(self, name, call, error=qk.CallError):
        for value, why in ((self.ZERO, "zero byte"), (self.HALF, "half a surrogate")):
            with self.assertRaisesRegex(error, f"^{name}: .*{why}"):
                call(value)

    def test_names_that_c_would_cut_are_refused(self):
        with qk.load(GOLDEN / "dense") as checkpoint:
            name = next(iter(checkpoint))
            for call in (checkpoint.layer, checkpoint.verify, checkpoint.__getitem__):
                self.refused("layer", call)
                with self.assertRaisesRegex(qk.CallError, "^layer: .*zero byte"):
                    call(name + "\0of another")
            self.refused("tensor", checkpoint.tensor)
            for other in (name + "\0", name + "\ud800", name.encode(), None, 3):
                self.assertNotIn(other, checkpoint)
            with self.assertRaisesRegex(qk.CallError, "layer: is b'.*', accepted is a str"):
                checkpoint.layer(name.encode())

    def test_paths_that_c_would_cut_are_refused(self):
        self.refused("path", qk.load)
        self.refused("path", qk.GRU.load)
        self.refused("path", frozen().save)
        self.refused("path", lambda path: qk.save(path, {"l": weight()}))

    def test_paths_need_not_be_utf8(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(os.fsencode(folder), b"\xff.safetensors")
            qk.save(os.fsdecode(path), {"l": weight()})
            self.assertEqual(list(qk.load(path)), ["l"])
            self.assertEqual(list(qk.load(os.fsdecode(path))), ["l"])

    def test_what_is_written_is_checked_before_a_file_is_made(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "m.safetensors")
            self.refused("layer", lambda name: qk.save(path, {name: weight()}))
            self.refused("layer", lambda name: qk.save(path, {name: np.ones(3, "f")}))
            self.refused("metadata", lambda text: qk.save(path, {"l": weight()},
                                                          metadata={text: "v"}))
            self.refused(r"metadata\['k'\]", lambda text: qk.save(path, {"l": weight()},
                                                                metadata={"k": text}))
            with self.assertRaisesRegex(qk.CallError, r"metadata\['k'\]: is 3, accepted is a str"):
                qk.save(path, {"l": weight()}, metadata={"k": 3})
            self.assertEqual(os.listdir(folder), [])


if __name__ == "__main__":
    unittest.main()
