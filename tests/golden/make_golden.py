"""Writes tests/golden/data with the real packages. See README.md; needs requirements.txt."""
import os

# Before torch is imported: plain eager arithmetic, and no look-ups on any network.
os.environ["TORCHDYNAMO_DISABLE"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import shutil
import tempfile
from pathlib import Path

import torch

import golden_bnb
import golden_int4
from golden_common import DATA

MAX_TOTAL_BYTES = 3_000_000


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    shutil.rmtree(DATA, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        golden_bnb.write_all(Path(folder))
    golden_int4.write_all()
    total = sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file())
    if total > MAX_TOTAL_BYTES:
        raise SystemExit(f"data is {total} bytes, more than {MAX_TOTAL_BYTES}")
    print(f"wrote {total} bytes to {DATA.name}/")


if __name__ == "__main__":
    main()
