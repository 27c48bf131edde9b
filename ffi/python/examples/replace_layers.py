"""A PyTorch model's linear layers in 4 bits: replaced, saved, loaded again. replace_layers.py"""
import os
import sys
import tempfile

try:
    import torch
    import qk.torch
except ImportError as error:
    sys.exit(f"{error}: pip install torch ./ffi/python, in a clone of qk")


def make_model():
    return torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(),
                               torch.nn.Linear(1024, 256))


def main():
    if len(sys.argv) > 1:
        sys.exit(f"usage: {sys.argv[0]} (without arguments)")
    torch.manual_seed(1)
    model, x = make_model().eval(), torch.randn(4, 256)
    with torch.no_grad():
        dense = model(x)
        print(qk.torch.replace_linear(model, "nf4", nested=True))
        small = model(x)
    print(f"error {(small - dense).norm() / dense.norm():.3f} of the result's norm")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.pt")
        torch.save(model.state_dict(), path)
        print(f"{os.path.getsize(path)} bytes for {2 * 256 * 1024} weights")
        with torch.device("meta"):  # the shapes of planes, without quantizing anything
            again = make_model()
        qk.torch.replace_linear(again, "nf4", nested=True)
        again.load_state_dict(torch.load(path), assign=True)
    with torch.no_grad():
        print("loaded: equal bits" if torch.equal(again.eval()(x), small) else "loaded: differs")


if __name__ == "__main__":
    main()
