"""Arrays in and out: numpy, torch on the CPU, DLPack, shapes, threads, lifetimes."""
import ctypes
import gc
import threading
import weakref
from unittest import mock

from common import GOLDEN, np, qk, torch, unittest

from qk import _abi, _arrays, _linear

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
        with self.assertRaisesRegex(qk.CallError, "x: is not row-major with its rows equally far"):
            qk.prepare(wide[:, ::2], w)
        with self.assertRaisesRegex(qk.CallError, "bias: is not compact"):
            qk.prepare(wide[:, :64].copy(), w, bias[::2])

    def test_packed_weights_give_the_same_bits(self):
        for options in ({}, {"format": "int4", "group_size": 32}, {"nested": True},
                        {"format": "int8"}, {"format": "lut8"}, {"format": "fp4_e2m1"},
                        {"format": "lut8", "group_size": 5},
                        {"format": "lut8", "group_size": 5000}):
            w = weight(**options)
            packed = w.repack()
            self.assertEqual(packed.layout, "packed")
            np.testing.assert_array_equal(w.dequantize(), packed.dequantize())
            x = RANDOM.standard_normal(64).astype("f")
            np.testing.assert_array_equal(w @ x, packed @ x)

    def test_strided_inputs_are_copied_and_outputs_refused(self):
        w, x = weight(), RANDOM.standard_normal((4, 128)).astype("f")[:, ::2]
        np.testing.assert_array_equal(qk.linear(x, w), qk.linear(x.copy(), w))
        with self.assertRaisesRegex(qk.CallError, "out: is not row-major with its rows equally"):
            qk.linear(x, w, out=np.zeros((4, 48), "f")[:, ::2])
        frozen = np.zeros((4, 24), "f")
        frozen.flags.writeable = False
        with self.assertRaisesRegex(qk.CallError, "read-only"):
            qk.linear(x.copy(), w, out=frozen)
        with self.assertRaises(TypeError):
            np.ones(24) @ w

    def test_read_only_inputs_give_the_same_bits(self):
        w, x, bias = weight(), RANDOM.standard_normal((3, 64)).astype("f"), np.ones(24, "f")
        y, shifted = qk.linear(x, w), qk.linear(x, w, bias)
        x.flags.writeable = bias.flags.writeable = False
        np.testing.assert_array_equal(qk.linear(x, w), y)
        np.testing.assert_array_equal(qk.linear(x, w, out=np.empty_like(y)), y)
        np.testing.assert_array_equal(w @ x[0], w @ x[0].copy())
        np.testing.assert_array_equal(qk.linear(x, w, bias), shifted)
        with self.assertRaisesRegex(qk.CallError, "out: .*read-only|y: .*read-only"):
            y.flags.writeable = False
            qk.linear(x, w, out=y)

    def test_a_prepared_call_that_fails_gives_its_lock_back(self):
        w, x = weight(), RANDOM.standard_normal((3, 64)).astype("f")
        with qk.Context(threads=1) as context:
            call = qk.prepare(x, w)
            y = call().copy()
            for status, kind in ((_abi.CONSTANTS["QK_ERROR_DEVICE_FAULT"], qk.DeviceError),
                                 (_abi.CONSTANTS["QK_ERROR_SHAPE"], qk.CallError)):
                with mock.patch.object(_linear, "_linear", lambda *_, s=status: s):
                    with self.assertRaises(kind):
                        call()
                self.assertFalse(context._lock.locked())
            np.testing.assert_array_equal(call(), y)
            np.testing.assert_array_equal(qk.linear(x, w), y)

    def test_bf16_ties_go_to_even(self):
        one = 0x3F80
        for bits, rounded in ((0x3F808000, one), (0x3F808001, one + 1), (0x3F818000, one + 2),
                              (0x3F817FFF, one + 1), (0xBF808000, 0xBF80), (0xBF818000, 0xBF82),
                              (0x7F7F8000, 0x7F80), (0x00008000, 0), (0x00018000, 2),
                              (0x7F800000, 0x7F80), (0x7F800001, 0x7FC0), (0xFF812345, 0x7FC0)):
            x = qk.asarray(np.array([bits], np.uint32).view("f"))
            self.assertEqual(x.to("bf16").plane("data")[0], rounded, hex(bits))
            self.assertEqual(x.to("f32").plane("data").view(np.uint32)[0], bits)

    def test_layers_go_where_weights_go(self):
        w, x = weight(), RANDOM.standard_normal((3, 64)).astype("f")
        bias, other = RANDOM.standard_normal((2, 24)).astype("f")
        layer, bare, y = qk.Layer(w, bias, name="l"), qk.Layer(w), qk.linear(x, w, bias)
        np.testing.assert_array_equal(qk.linear(x, layer), y)
        np.testing.assert_array_equal(qk.prepare(x, layer)(), y)
        np.testing.assert_array_equal(qk.linear(x, layer, out=np.empty_like(y)), y)
        np.testing.assert_array_equal(layer(x), y)
        np.testing.assert_array_equal(qk.linear(x, bare), qk.linear(x, w))
        np.testing.assert_array_equal(qk.linear(x, bare, bias), y)
        for call in (qk.linear, qk.prepare):
            with self.assertRaisesRegex(qk.CallError, "^bias: is given, and the layer has one"):
                call(x, layer, other)
            with self.assertRaisesRegex(qk.CallError, "^w: is a ndarray, accepted are qk.Tensor"):
                call(x, w.dequantize())
        for made in (qk.repack(layer), qk.repack(layer, "row"), layer.repack()):
            self.assertIsInstance(made, qk.Layer)
            np.testing.assert_array_equal(made(x), y)
        np.testing.assert_array_equal(qk.dequantize(layer), w.dequantize())
        np.testing.assert_array_equal(qk.dequantize(layer, "f16"), w.dequantize("f16"))
        dense = np.empty((24, 64), "f")
        self.assertIs(qk.dequantize(layer, out=dense), dense)
        small = qk.quantize(qk.Layer(w.to("f32"), bias, name="l"), "nf4", group_size=64)
        np.testing.assert_array_equal(small.weight.plane("data"), w.plane("data"))
        np.testing.assert_array_equal(small(x), y)
        self.assertEqual(small.name, "l")
        self.assertIn("+ bias", repr(layer))

    def test_layers_of_files_are_multiplied_as_they_are(self):
        for folder in ("bnb_nf4_nested", "ct_int4_asym_g32", "dense"):
            model = qk.load(GOLDEN / folder)
            for name in model:
                layer = model[name]
                x = RANDOM.standard_normal((2, layer.shape[1])).astype("f")
                if layer.weight.format in ("f16", "bf16"):
                    x = qk.asarray(x).to(layer.weight.format)
                y, same = (qk.asarray(product).to("f32").plane("data")
                           for product in (qk.linear(x, layer), layer(x)))
                np.testing.assert_array_equal(y, same)

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

    def test_old_capsules_begin_at_their_offset_and_have_strides(self):
        base = np.arange(24, dtype="f")

        def taken(shape, strides, offset):
            return qk.asarray(OldCapsule(base, shape, strides, 4 * offset)).numpy()

        np.testing.assert_array_equal(taken((2, 3), None, 5), base[5:11].reshape(2, 3))
        np.testing.assert_array_equal(taken((2, 3), (3, 1), 5), base[5:11].reshape(2, 3))
        np.testing.assert_array_equal(taken((1, 3), (17, 1), 2), base[2:5].reshape(1, 3))
        for strides in ((1, 2), (6, 1), (3, 2), (0, 1), (-3, 1)):
            with self.assertRaisesRegex(qk.CallError, "x: is not compact and row-major"):
                taken((2, 3), strides, 5)
        w = weight()
        long = np.concatenate([np.full(7, np.nan, "f"), RANDOM.standard_normal(64).astype("f")])
        y = qk.linear(OldCapsule(long, (1, 64), None, 28), w)
        np.testing.assert_array_equal(np.asarray(y), qk.linear(long[7:].reshape(1, 64), w))

    def test_read_only_tensors_are_exported_as_read_only(self):
        x = np.arange(6, dtype="f")
        for writable in (True, False):
            x.flags.writeable = writable
            tensor = qk.asarray(x)
            self.assertEqual(flags_of(tensor.__dlpack__(max_version=(1, 0))), 0 if writable else 1)
            if not writable:  # what older consumers would write to
                with self.assertRaisesRegex(BufferError, "read-only"):
                    tensor.__dlpack__()
                with self.assertRaisesRegex(qk.CallError, "read-only"):
                    tensor.set_plane("data", np.zeros(6, "f"))
        checkpoint = qk.load(GOLDEN / "dense", in_place=True)
        weight_in_place = checkpoint[next(iter(checkpoint))].weight
        self.assertEqual(flags_of(weight_in_place.__dlpack__(max_version=(1, 0))), 1)
        _arrays.drop_unused()

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


class OldCapsule:
    """A producer from before DLPack 1.0 whose tensor is any part of an array."""

    shape = property(lambda self: tuple(self.tensor.shape[:self.tensor.ndim]))

    def __init__(self, array, shape, strides, offset):
        sizes = ctypes.c_int64 * len(shape)
        self.array, self.sizes, self.steps = array, sizes(*shape), strides and sizes(*strides)
        self.tensor = _arrays._DLTensor(
            data=array.ctypes.data, device_type=1, ndim=len(shape), code=2, bits=32, lanes=1,
            shape=self.sizes, strides=self.steps, byte_offset=offset)

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, stream=None):
        return _arrays._api.PyCapsule_New(ctypes.addressof(self.tensor), _arrays.OLD, None)


def flags_of(capsule):
    """DLManagedTensorVersioned: {u32 major, minor; void *manager, *deleter; u64 flags; ...}"""
    return ctypes.c_uint64.from_address(_arrays.capsule_pointer(capsule) + 24).value


class Torch(unittest.TestCase):
    def test_tensors_go_in_and_out_without_a_copy(self):
        t = torch()
        w = qk.quantize(t.randn(24, 64))
        dense = t.from_numpy(w.dequantize()).double()
        for dtype, step in ((t.float32, 2.0 ** -24), (t.bfloat16, 2.0 ** -8),
                            (t.float16, 2.0 ** -11)):
            x = t.randn(3, 5, 64, dtype=dtype)
            y = qk.linear(x, w)
            self.assertEqual((y.dtype, tuple(y.shape)), (dtype, (3, 5, 24)))
            exact = x.double() @ dense.T
            limit = step * exact.abs() + t.from_numpy(bound(x.float().numpy(), w))
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
