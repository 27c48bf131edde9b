#!/usr/bin/env python3
"""Signal over error, in dB, of PyTorch's dynamic int8 GRU on the networks that docs/gru.md names,
against a GRU in double: 10 log10(sum h^2 / sum (h - hq)^2) over the test recording.

    QK_SHARED_DATA=FOLDER bench/gru_torch_int8.py [--engine fbgemm|onednn|qnnpack|x86]

Says so and leaves with 77 where PyTorch or the networks are missing.
"""
import argparse
import os
import pathlib
import sys

try:
    import numpy as np
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

NETWORKS = {"encoder_en_convs_3_pconv2_2_ta_gru": 1, "decoder_de_convs_0_dconv_4_ta_gru": 1,
            "encoder_en_convs_1_pconv2_2_ta_gru": 1, "dpgrnn_1_inter_rnn_rnn1": 33}


def load(folder, name):
    def read(part):
        return torch.from_numpy(np.fromfile(folder / f"w_{name}_{part}_l0.f32", np.float32))

    biases = read("bias_ih"), read("bias_hh")
    hidden = biases[0].numel() // 3
    w_ih = read("weight_ih").reshape(3 * hidden, -1)
    module = torch.nn.GRU(w_ih.shape[1], hidden)
    values = {"weight_ih_l0": w_ih, "weight_hh_l0": read("weight_hh").reshape(3 * hidden, hidden),
              "bias_ih_l0": biases[0], "bias_hh_l0": biases[1]}
    module.load_state_dict(values)
    return module.eval()


def decibels(folder, name, batch):
    module = load(folder, name)
    x = torch.from_numpy(np.fromfile(folder / f"io_{name}_test_x.f32", np.float32))
    x = x.reshape(-1, batch, module.input_size)
    with torch.inference_mode():
        quantized = torch.ao.quantization.quantize_dynamic(
            torch.nn.Sequential(module), {torch.nn.GRU}, dtype=torch.qint8)[0]
        found = quantized(x)[0].double()
        truth = module.double()(x.double())[0]
    return float(10 * torch.log10((truth ** 2).sum() / ((truth - found) ** 2).sum()))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="onednn")
    torch.backends.quantized.engine = parser.parse_args().engine
    folder = pathlib.Path(os.environ.get("QK_SHARED_DATA", "../shared/data")) / "ulunas"
    if not folder.is_dir():
        print(f"skipped: no networks at {folder}")
        sys.exit(77)
    values = [decibels(folder, name, batch) for name, batch in NETWORKS.items()]
    for name, value in zip(NETWORKS, values):
        print(f"{name:36} {value:6.2f} dB")
    print(f"{'mean':36} {sum(values) / len(values):6.2f} dB")


if __name__ == "__main__":
    main()
