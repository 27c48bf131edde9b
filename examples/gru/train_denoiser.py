#!/usr/bin/env python3
"""Trains the small GRU of the examples: it removes white noise from gliding tones.

    pip install -r requirements.txt && python train_denoiser.py [FOLDER]

Everything is generated from fixed seeds; a few minutes on one CPU core. Writes

    denoiser.safetensors  gru.* (PyTorch's nn.GRU: 16 in, 64 hidden) and head.* (nn.Linear to 16)
    calibration.f32       noisy frames [512,16], to quantize with
    test.f32              others, to measure with
"""
import math
import pathlib
import sys

try:
    import torch
    from safetensors.torch import save_file
except ImportError as error:
    sys.exit(f"{error}: pip install -r requirements.txt")

FRAME, HIDDEN, SEED = 16, 64, 20250601
BATCH, FRAMES, UPDATES = 32, 96, 1500


class Denoiser(torch.nn.Module):
    """Noisy frames [t,b,16] to clean ones; what the GRU heard so far tells tone from noise."""

    def __init__(self):
        super().__init__()
        self.gru = torch.nn.GRU(FRAME, HIDDEN)
        self.head = torch.nn.Linear(HIDDEN, FRAME)

    def forward(self, noisy):
        return self.head(self.gru(noisy)[0])


def signals(batch, frames, generator):
    """Clean and noisy frames [t,b,16]: tones with two overtones, gliding, switched on and off."""
    def uniform(low, high):
        return low + (high - low) * torch.rand(batch, 1, generator=generator)

    time = torch.arange(frames * FRAME) / (frames * FRAME)
    pitch = uniform(0.02, 0.12) * 2 ** (uniform(0, 0.5) * torch.sin(2 * math.pi * (
        uniform(0.5, 3) * time + uniform(0, 1))))  # cycles a sample
    phase = 2 * math.pi * torch.cumsum(pitch, 1)
    tone = sum(uniform(0, 1) / k * torch.sin(k * phase + uniform(0, 2 * math.pi))
               for k in (1, 2, 3))
    gate = torch.sigmoid(20 * torch.sin(2 * math.pi * (uniform(1, 4) * time + uniform(0, 1))))
    clean = uniform(0.2, 0.7) * tone * gate
    noisy = clean + uniform(0.05, 0.25) * torch.randn(clean.shape, generator=generator)
    return tuple(s.view(batch, frames, FRAME).transpose(0, 1) for s in (clean, noisy))


def snr(clean, other):
    return 10 * torch.log10(clean.square().sum() / (clean - other).square().sum()).item()


def train():
    torch.set_num_threads(1)  # sums in one order
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    model = Denoiser()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, UPDATES)
    for update in range(1, UPDATES + 1):
        clean, noisy = signals(BATCH, FRAMES, generator)
        loss = torch.nn.functional.mse_loss(model(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if update % 100 == 0:
            print(f"update {update}: loss {loss.item():.5f}", flush=True)
    return model


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    model = train()
    save_file({name: value.contiguous() for name, value in model.state_dict().items()},
              folder / "denoiser.safetensors", {"format": "pt", "torch": torch.__version__})
    for name, seed in (("calibration", 1), ("test", 2)):
        # Eight signals, one after the other.
        clean, noisy = (s.transpose(0, 1).reshape(512, 1, FRAME)
                        for s in signals(8, 64, torch.Generator().manual_seed(seed)))
        noisy.numpy().astype("<f4").tofile(folder / f"{name}.f32")
        with torch.no_grad():
            print(f"{name}: SNR {snr(clean, noisy):.2f} dB noisy, "
                  f"{snr(clean, model(noisy)):.2f} dB denoised")


if __name__ == "__main__":
    main()
