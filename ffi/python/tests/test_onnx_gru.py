"""Integer GRUs in ONNX models: ONNX Runtime gives what qk.StackedGRU gives, to the bit.

Before a release; needs the packages onnx, onnxruntime and onnxruntime-extensions.
"""
import itertools
import sys

from common import np, qk, unittest

try:
    import onnx
    import onnxruntime
    import onnxruntime_extensions  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import qk.onnx

T, B, C, H = 7, 3, 4, 6
RANDOM = np.random.default_rng(19)
FLOAT, INT32 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT32


def model(direction, layout, reset_after, *, lengths, start, outputs=("Y", "Y_h")):
    """A GRU between two nodes that only pass on, and another that shares its bias."""
    ways = 2 if direction == "bidirectional" else 1
    arrays = {name: RANDOM.standard_normal(shape).astype(np.float32) * np.float32(0.4)
              for name, shape in (("w", (ways, 3 * H, C)), ("r", (ways, 3 * H, H)),
                                  ("b", (ways, 6 * H)))}
    make = onnx.helper
    inputs = [make.make_tensor_value_info("X", FLOAT, [None] * 3)]
    if lengths:
        inputs.append(make.make_tensor_value_info("lengths", INT32, [None]))
    if start:
        inputs.append(make.make_tensor_value_info("h0", FLOAT, [None] * 3))
    node = make.make_node(
        "GRU", ["x", "w", "r", "b", "lengths" if lengths else "", "h0" if start else ""],
        list(outputs), name="encoder", direction=direction, layout=layout, hidden_size=H,
        linear_before_reset=int(reset_after))
    nodes = [make.make_node("Identity", ["X"], ["x"]), node,
             make.make_node("Identity", ["b"], ["bias"])]
    graph = make.make_graph(
        nodes, "one", inputs,
        [make.make_tensor_value_info(name, FLOAT, None) for name in outputs if name]
        + [make.make_tensor_value_info("bias", FLOAT, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()])
    return make.make_model(graph, ir_version=8, opset_imports=[make.make_opsetid("", 17)])


def session(made):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what is refused is told by the exception
    options.register_custom_ops_library(qk.onnx.library())
    return onnxruntime.InferenceSession(made.SerializeToString(), options,
                                        providers=["CPUExecutionProvider"])


class OnnxGru(unittest.TestCase):
    def check(self, direction, layout, reset_after, lengths, start):
        made = model(direction, layout, reset_after, lengths=lengths, start=start)
        ways = 2 if direction == "bidirectional" else 1
        x = RANDOM.standard_normal((B, T, C) if layout else (T, B, C)).astype(np.float32)
        given = {"X": x}
        steps = h0 = None
        if lengths:
            steps = given["lengths"] = np.array([T, 2, 5], np.int32)
        if start:
            h0 = RANDOM.uniform(-0.5, 0.5, (ways, B, H)).astype(np.float32)
            given["h0"] = h0.transpose(1, 0, 2) if layout else h0
        net = qk.StackedGRU.from_onnx(made).calibrate(x, h0, steps).freeze()
        qk.onnx.replace_gru(made, net)
        self.assertEqual({tensor.name for tensor in made.graph.initializer} & {"w", "r", "b"},
                         {"b"})
        y, h = net(x, h0, steps)
        y = y.reshape(*y.shape[:2], ways, H)
        if layout:
            h = h.transpose(1, 0, 2)
        else:
            y = y.transpose(0, 2, 1, 3)
        runs = session(made)
        for _ in range(2):
            got = runs.run(["Y", "Y_h"], given)
            np.testing.assert_array_equal(got[0], y)
            np.testing.assert_array_equal(got[1], h)

    def test_bits_are_the_stack_s(self):
        ways = ("forward", "reverse", "bidirectional")
        for direction, layout, reset_after in itertools.product(ways, (0, 1), (False, True)):
            for lengths, start in ((False, False), (True, True)):
                with self.subTest(direction=direction, layout=layout, reset_after=reset_after,
                                  lengths=lengths):
                    self.check(direction, layout, reset_after, lengths, start)

    def test_near_what_the_node_gives_in_float(self):
        made = model("forward", 0, True, lengths=False, start=False)
        x = RANDOM.standard_normal((T, B, C)).astype(np.float32)
        exact, = onnxruntime.InferenceSession(
            made.SerializeToString(), providers=["CPUExecutionProvider"]).run(["Y"], {"X": x})
        net = qk.StackedGRU.from_onnx(made, preset="w16a16", options=("uniform_tables",))
        qk.onnx.replace_gru(made, net.calibrate(x).freeze(), node="encoder")
        got, = session(made).run(["Y"], {"X": x})
        self.assertEqual(got.shape, exact.shape)
        self.assertLess(np.abs(got - exact).max(), 2e-3)

    def test_a_node_with_one_output(self):
        for outputs in (("Y",), ("", "Y_h")):
            made = model("forward", 0, True, lengths=False, start=False, outputs=outputs)
            x = RANDOM.standard_normal((T, B, C)).astype(np.float32)
            net = qk.StackedGRU.from_onnx(made).calibrate(x).freeze()
            qk.onnx.replace_gru(made, net)
            got, = session(made).run([outputs[-1]], {"X": x})
            y, h = net(x)
            np.testing.assert_array_equal(got, h if len(outputs) == 2 else y[:, None])

    def test_what_is_refused(self):
        made = model("forward", 0, True, lengths=False, start=False)
        x = RANDOM.standard_normal((T, B, C)).astype(np.float32)
        net = qk.StackedGRU.from_onnx(made).calibrate(x)
        with self.assertRaisesRegex(qk.CallError, "must be one layer, frozen"):
            qk.onnx.replace_gru(made, net)
        net.freeze()
        with self.assertRaisesRegex(qk.CallError, "the node is reverse, layout 0"):
            qk.onnx.replace_gru(model("reverse", 0, True, lengths=False, start=False), net)
        with self.assertRaisesRegex(qk.CallError, "0 GRU nodes of the name 'decoder'"):
            qk.onnx.replace_gru(made, net, node="decoder")
        qk.onnx.replace_gru(made, net)
        with self.assertLogs("qk", "ERROR") as told:
            got, = session(made).run(["Y"], {"X": x[..., :2]})
        self.assertIn("x: is [7, 3, 2]", told.output[0])
        self.assertTrue(np.isnan(got).all())


if __name__ == "__main__":
    unittest.main()
