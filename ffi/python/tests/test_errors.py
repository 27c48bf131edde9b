"""Every hundred of statuses is its exception, with the library's sentence."""
import ctypes
import tempfile

from common import GOLDEN, np, os, qk, unittest

from qk import _abi, _errors


class Errors(unittest.TestCase):
    def raises(self, kind, name, sentence, call):
        with self.assertRaises(kind) as caught:
            call()
        error = caught.exception
        self.assertEqual(error.name, f"QK_ERROR_{name}")
        self.assertEqual(error.status, _abi.CONSTANTS[error.name])
        self.assertRegex(str(error), sentence)
        self.assertIsInstance(error, qk.Error)

    def test_1xx_the_call_is_wrong(self):
        w = qk.quantize(np.ones((4, 64), "f"))
        self.raises(qk.CallError, "SHAPE", "^w: k is 64, x has k 63$",
                    lambda: qk.linear(np.ones(63, "f"), w))
        self.raises(ValueError, "SHAPE", "^w: k is 64, x has k 63$",
                    lambda: qk.linear(np.ones((2, 3, 63), np.float16), w))
        self.raises(qk.CallError, "FORMAT", "float64, accepted are float32",
                    lambda: qk.linear(np.ones(64), w))
        self.raises(qk.CallError, "SHAPE", "group_size", lambda: qk.quantize(
            np.ones((4, 64), "f"), group_size=7))
        memory, square = np.zeros(128, "f"), qk.quantize(np.ones((64, 64), "f"))
        self.raises(qk.CallError, "STATE", "overlap",
                    lambda: qk.linear(memory[:64], square, out=memory[32:96]))
        self.raises(qk.CallError, "ARGUMENT", "^out: is a list, accepted are arrays$",
                    lambda: qk.linear(np.ones(64, "f"), w, out=[np.float32(0)] * 4))
        self.raises(qk.CallError, "ARGUMENT", "'nf5', accepted are nf4, fp4, .*, int4, .*, mxfp4",
                    lambda: qk.quantize(np.ones((4, 64), "f"), "nf5"))
        w.close()
        self.raises(qk.CallError, "NULL", "NULL", lambda: w.repack())
        self.raises(qk.CallError, "NULL", "w", lambda: qk.prepare(np.ones(64, "f"), w))

    def test_1xx_refused_calls_change_nothing(self):
        y = np.full(5, 7, "f")
        w = qk.quantize(np.ones((4, 64), "f"))
        self.raises(qk.CallError, "SHAPE", "n", lambda: qk.linear(np.ones(64, "f"), w, out=y))
        self.assertTrue((y == 7).all())

    def test_2xx_not_here(self):
        if qk.device_count("cuda"):
            self.raises(qk.UnsupportedError, "NO_DEVICE", "no such device",
                        lambda: qk.Context("cuda", 99))
        else:
            with self.assertRaises(qk.UnsupportedError):
                qk.Context("cuda")
        packed = qk.quantize(np.ones((4, 64), "f")).repack()
        for call in (lambda: packed.nbytes, lambda: packed.plane("data"),
                     lambda: packed.to_device("cpu")):
            self.raises(qk.UnsupportedError, "UNSUPPORTED", "tensor: is packed", call)
        with qk.load(GOLDEN / "awq_marlin_refused") as checkpoint:
            layer = next(layer for layer in checkpoint.layers if layer.status)
            self.raises(NotImplementedError, "UNSUPPORTED", "marlin",
                        lambda: checkpoint[layer.name])
            self.assertIn(layer.reason, "marlin " + layer.reason)

    def test_3xx_out_of_something(self):
        self.raises(qk.ResourceError, "MEMORY", "no memory for 2882303761517[0-9]* bytes",
                    lambda: qk.Tensor.empty((1 << 20, 1 << 36)))
        self.raises(MemoryError, "MEMORY", "out of memory",
                    lambda: qk.Context(workspace_bytes=1 << 60))

    def test_4xx_and_9xx_as_a_failing_device_gives_them(self):
        context = qk.Context()
        for status, kind in ((401, qk.DeviceError), (901, qk.InternalError),
                             (499, qk.DeviceError), (777, qk.InternalError)):
            fails = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(lambda _, s=status: s)
            with self.assertRaises(kind) as caught:
                context.call(fails)
            self.assertEqual(caught.exception.status, status)
            self.assertEqual(str(caught.exception), _abi.lib.qk_status_string(status).decode())

    def test_5xx_files(self):
        self.raises(qk.StorageError, "FILE", "/nowhere/at/all: cannot open",
                    lambda: qk.load("/nowhere/at/all"))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.safetensors")
            with open(path, "wb") as file:
                file.write(b"\xff" * 64)
            self.raises(OSError, "CORRUPT", "model.safetensors", lambda: qk.load(path))
        self.raises(qk.StorageError, "CORRUPT", "gru: ", lambda: qk.GRU.load(b"not a GRU"))

    def test_every_status_has_a_class(self):
        for name, value in _abi.CONSTANTS.items():
            if name.startswith("QK_ERROR_"):
                error = _errors.make_error(value, "why")
                self.assertEqual((error.name, str(error)), (name, "why"))
                self.assertIsNot(type(error), qk.Error)


if __name__ == "__main__":
    unittest.main()
