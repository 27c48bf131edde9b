"""README's size of libqk.a, stripped, is this build's to a tenth.

    size.py SOURCE ARCHIVE STRIP
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

source, archive, strip = map(pathlib.Path, sys.argv[1:])
readme = (source / "README.md").read_text(encoding="utf-8")
row = re.search(r"^\| cpu-only \|.*\| ([\d.]+) MB \|$", readme, re.MULTILINE)
if row is None:
    sys.exit("README.md: no row cpu-only with a size")
with tempfile.TemporaryDirectory() as folder:
    copy = shutil.copy(archive, folder)
    subprocess.run([strip, "--strip-unneeded", copy], check=True)
    size = pathlib.Path(copy).stat().st_size / 1e6
said = float(row[1])
print(f"README says {said} MB, {archive.name} has {size:.2f} MB")
sys.exit(not 0.9 <= size / said <= 1.1)
