"""Arrays in and out: numpy, torch on the CPU, DLPack, shapes, threads, lifetimes."""
import gc
import threading
import weakref

from common import np, qk, torch, unittest

from qk import _arrays

RANDOM = np.random.default_rng(3)


def weight(n=24, k=64, **options):
    return qk.quantize(RANDOM.standard_normal((n, k)).astype("f"), **options)


def bound(x, w):
    """f32 sums of k products: k 2^-24 of the sum of magnitudes, twice for either order."""
    return 2 * w.shape[1] * 2.0 ** -24 * (np.abs(x) @ np.abs(w.dequantize()).T + 1)


class Products(unittest.TestCase):
    def test_shapes_and_types(self):
        w = weight()
        exact = w.dequantize().astype(np.float64)
        for shape in ((64,), (1, 64), (5, 64), (2, 3, 64), (2, 2, 3, 64)):
            x = RANDOM.standard_normal(shape).astype("f")
            y = qk.linear(x, w)
            self.assertEqual((y.shape, y.dtype), ((*shape[:-1], 24), np.float32))
            self.assertTrue((np.abs(y - x @ exact.T) <= bound(x, w)).all(), shape)
            half = qk.linear(x.astype(np.float16), w)
            self.assertEqual(half.dtype, np.float16)
        x = RANDOM.standard_normal((64, 3)).astype("f")
        np.testing.assert_array_equal(w @ x, qk.linear(np.ascontiguousarray(x.T), w).T)
        np.testing.assert_array_equal(w @ x[:, 0], qk.linear(x[:, 0], w))

    def test_out_bias_and_prepared_calls(self):
        w, x = weight(), RANDOM.standard_normal((3, 64)).astype("f")
        bias, y = RANDOM.standard_normal(24).astype("f"), np.full((3, 24), np.nan, "f")
        self.assertIs(qk.linear(x, w, bias, out=y), y)
        np.testing.assert_array_equal(y, qk.Layer(w, bias)(x))
        call = qk.prepare(x, w, bias, out=y)
        x += 1
        self.assertIs(call(), y)
        np.testing.assert_array_equal(y, qk.linear(x, w, bias))

    def test_prepared_calls_refuse_what_they_would_have_to_copy(self):
        w, wide = weight(), RANDOM.standard_normal((3, 128)).astype("f")
        bias = RANDOM.standard_normal(48).astype("f")
        with self.assertRaisesRegex(qk.CallError, "x: is not compact"):
            qk.prepare(wide[:, ::2], w)
        with self.assertRaisesRegex(qk.CallError, "bias: is not compact"):
            qk.prepare(wide[:, :64].copy(), w, bias[::2])

    def test_packed_weights_give_the_same_bits(self):
        for options in ({}, {"format": "int4", "group_size": 32}, {"nested": True},
                        {"format": "int8"}, {"format": "lut8"}, {"format": "fp4_e2m1"}):
            w = weight(**options)
            packed = w.repack()
            self.assertEqual(packed.layout, "packed")
            np.testing.assert_array_equal(w.dequantize(), packed.dequantize())
            x = RANDOM.standard_normal(64).astype("f")
            np.testing.assert_array_equal(w @ x, packed @ x)

    def test_strided_inputs_are_copied_and_outputs_refused(self):
        w, x = weight(), RANDOM.standard_normal((4, 128)).astype("f")[:, ::2]
        np.testing.assert_array_equal(qk.linear(x, w), qk.linear(x.copy(), w))
        with self.assertRaisesRegex(qk.CallError, "compact"):
            qk.linear(x, w, out=np.zeros((4, 48), "f")[:, ::2])
        frozen = np.zeros((4, 24), "f")
        frozen.flags.writeable = False
        with self.assertRaisesRegex(qk.CallError, "read-only"):
            qk.linear(x.copy(), w, out=frozen)
        with self.assertRaises(TypeError):
            np.ones(24) @ w

    def test_scratch_grows_where_it_was_left_open(self):
        w, x = weight(64, 512).repack(), RANDOM.standard_normal((9, 512)).astype("f")
        exact = qk.linear(x, w)
        with qk.Context(mode="int8_activations") as context:
            need = w.workspace_bytes(9)
            self.assertGreater(need, 0)
            call = qk.prepare(x[:1], w)
            first = call().copy()
            rounded = qk.linear(x, w)
            np.testing.assert_array_equal(call(), first)  # the context has grown since
            self.assertIsNone(context.workspace_bytes)
        self.assertTrue((rounded != exact).any())
        self.assertLess(np.abs(rounded - exact).max(), 0.05 * np.abs(exact).max())
        with qk.Context(mode="int8_activations", workspace_bytes=need):
            np.testing.assert_array_equal(qk.linear(x, w), rounded)
        with qk.Context(mode="int8_activations", workspace_bytes=need - 1):
            with self.assertRaisesRegex(qk.ResourceError, "workspace") as caught:
                qk.linear(x, w)
            self.assertEqual(caught.exception.name, "QK_ERROR_WORKSPACE")
        with self.assertRaisesRegex(qk.CallError, "mode: is 'fast'"):
            qk.Context(mode="fast")

    def test_scratch_for_speed_grows_where_it_was_left_open_and_memory_allows(self):
        w, x = weight(64, 512), RANDOM.standard_normal((9, 512)).astype("f")
        with qk.Context() as context:
            tensor = qk.asarray(x)
            y = qk.linear(tensor, w).numpy()
            for need, scratch in ((1 << 16, 1 << 16), (1 << 12, 1 << 16), (1 << 60, 1 << 16)):
                context.grow_for_speed(need)
                self.assertEqual(context._scratch, scratch)
                np.testing.assert_array_equal(qk.linear(tensor, w).numpy(), y)
        with qk.Context(workspace_bytes=0) as context:
            context.grow_for_speed(1 << 16)
            self.assertEqual(context._scratch, 0)


class Lifetimes(unittest.TestCase):
    def test_arrays_live_as_long_as_tensors_over_them(self):
        x = np.ones((2, 64), "f")
        alive = weakref.ref(x)
        tensor = qk.asarray(x)
        del x
        gc.collect()
        self.assertIsNotNone(alive())
        tensor.close()
        gc.collect()
        self.assertIsNone(alive())

    def test_dlpack_views_outlive_tensors(self):
        for plane, dtype in (("data", np.uint8), ("scale", np.float32)):
            w = weight()
            copy = w.plane(plane)

            class Plane:  # what a consumer sees
                __dlpack_device__ = w.__dlpack_device__

                def __dlpack__(self, w=w, plane=plane, **options):
                    return w.__dlpack__(plane=plane, **options)

            try:
                view = np.from_dlpack(Plane())
            except (AttributeError, BufferError, TypeError) as error:
                self.skipTest(f"numpy {np.__version__}: {error}")
            w.close()
            gc.collect()
            self.assertEqual(view.dtype, dtype)
            np.testing.assert_array_equal(view, copy)

    def test_capsules_nobody_takes_are_freed(self):
        tensor = qk.Tensor.empty((1 << 20,), "f32")
        context = tensor.context
        for _ in range(64):  # 256 MiB if they leaked
            tensor = qk.Tensor.empty((1 << 20,), "f32", context=context)
            tensor.__dlpack__(max_version=(1, 0))
            tensor.__dlpack__()  # as before DLPack 1.0
            self.assertLessEqual(len(_arrays._exported), 2)
        _arrays.drop_unused()
        self.assertEqual(_arrays._handed_out, {})

    def test_a_consumer_that_refuses_raises_its_own_error(self):
        for old in (None, (1, 0)):
            tensor = qk.Tensor.empty((1 << 20,), "f32")
            with self.assertRaisesRegex(TypeError, "int"):
                int(tensor.__dlpack__(max_version=old))
        _arrays.drop_unused()
        self.assertEqual((len(_arrays._exported), _arrays._handed_out), (0, {}))

    def test_consumers_from_before_dlpack_1(self):
        tensor = qk.Tensor.empty((3, 5), "f32")
        tensor.set_plane("data", np.arange(15, dtype="f"))

        class Old:  # asks without a version, as they do
            __dlpack_device__ = tensor.__dlpack_device__

            def __dlpack__(self, tensor=tensor, **options):
                return tensor.__dlpack__()

        view = np.from_dlpack(Old())
        tensor.close()
        del tensor
        gc.collect()
        np.testing.assert_array_equal(view, np.arange(15, dtype="f").reshape(3, 5))
        again = qk.asarray(OldProducer(np.array(view)))  # numpy's views of old capsules are const
        np.testing.assert_array_equal(again.numpy(), view)
        self.assertEqual(len(_arrays._handed_out), 1)
        again.close()
        del view, again, Old
        gc.collect()
        self.assertEqual(_arrays._handed_out, {})

    def test_context_managers_close(self):
        with weight() as w:
            self.assertIn("nf4", repr(w))
        with self.assertRaisesRegex(qk.CallError, "NULL"):
            w.dequantize()
        with qk.Context(threads=1) as context:
            self.assertIs(qk.current_context(), context)
        self.assertIsNot(qk.current_context(), context)

    def test_threads_have_contexts_of_their_own(self):
        w, x = weight(64, 256), RANDOM.standard_normal((8, 256)).astype("f")
        exact, wrong, contexts = qk.linear(x, w), [], set()
        shared = qk.Context(threads=2)

        def work(context):
            for _ in range(50):
                with context or qk.current_context():
                    if not np.array_equal(qk.linear(x, w), exact):
                        wrong.append(1)
            contexts.add(id(qk.current_context()))

        threads = [threading.Thread(target=work, args=(c,)) for c in (None, None, shared, shared)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])


class OldProducer:
    """A producer from before DLPack 1.0: knows no max_version."""

    def __init__(self, array):
        self.array, self.shape = array, array.shape

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()


class Torch(unittest.TestCase):
    def test_tensors_go_in_and_out_without_a_copy(self):
        t = torch()
        w = qk.quantize(t.randn(24, 64))
        dense = t.from_numpy(w.dequantize()).double()
        for dtype, step in ((t.float32, 2.0 ** -24), (t.bfloat16, 2.0 ** -8),
                            (t.float16, 2.0 ** -11)):
            x = t.randn(3, 5, 64, dtype=dtype, requires_grad=True)
            y = qk.linear(x, w)
            self.assertEqual((y.dtype, tuple(y.shape)), (dtype, (3, 5, 24)))
            exact = x.detach().double() @ dense.T
            limit = step * exact.abs() + t.from_numpy(bound(x.detach().float().numpy(), w))
            self.assertTrue(((y.double() - exact).abs() <= limit).all())
            out = t.empty_like(y)
            self.assertIs(qk.linear(x, w, out=out), out)
            self.assertTrue(t.equal(out, y))
        shared = t.from_dlpack(w.to("bf16"))
        self.assertTrue(t.equal(shared.double(), t.from_dlpack(w.to("bf16")).double()))
        x = t.randn(64)
        tensor = qk.asarray(x)
        x.fill_(2)
        self.assertTrue((tensor.numpy() == 2).all())


if __name__ == "__main__":
    unittest.main()
