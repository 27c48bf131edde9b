"""Quantizes a trained GRU, saves and loads it, and streams a signal through it step by step.

    python3 stream_gru.py ../../../examples/gru
"""
import os
import sys

try:
    import numpy as np

    import qk
except ImportError as error:
    sys.exit(f"{error}: pip install ./ffi/python, in a clone of qk")

C, STEPS = 16, 512


def main(folder):
    def signal(name):
        return np.fromfile(os.path.join(folder, name), np.float32).reshape(STEPS, C)

    with qk.load(os.path.join(folder, "denoiser.safetensors")) as file:
        weights = [file.tensor(f"gru.{name}_l0")
                   for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        trained = qk.GRU(*weights, preset="w8h16")  # from_torch(module) where there is one
        del weights  # views of the file
    trained.calibrate(signal("calibration.f32"))  # what ranges do values take?
    x = signal("test.f32")
    exact = trained.run_float(x)  # to compare with
    image = trained.freeze().tobytes()  # integers from here on; save(path) writes a file
    gru = qk.GRU.load(image)

    state = gru.stream()
    y = np.stack([state(frame) for frame in x])
    state.reset()
    same = np.array_equal(state(x), y)
    sqnr = 10 * np.log10((exact ** 2).sum() / ((exact - y) ** 2).sum())
    print(f"{gru}: {len(image)} bytes\nSQNR against float: {sqnr:.2f} dB")
    print(f"{STEPS} calls of one step and one call of {STEPS}: "
          f"{'equal bits' if same else 'DIFFERENT'}")
    assert same and sqnr >= 29.5  # what W8H16 must reach on any network


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    main(sys.argv[1])
