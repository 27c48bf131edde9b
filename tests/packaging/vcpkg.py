#!/usr/bin/env python3
"""The vcpkg port against the build it drives: same version, options and features."""
import json
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
port = root / "packaging/vcpkg/ports/qk"
manifest = json.loads((port / "vcpkg.json").read_text())
portfile = (port / "portfile.cmake").read_text()
project = (root / "CMakeLists.txt").read_text()
options = (root / "cmake/QkOptions.cmake").read_text()

version = re.search(r"project\(qk VERSION ([0-9.]+)", project).group(1)
assert manifest["version"] == version, f"vcpkg.json says {manifest['version']}, qk is {version}"

known = set(re.findall(r"^\s*(?:option\(|set\()(QK_\w+)", options, re.M))
used = set(re.findall(r"(QK_(?:BUILD_\w+|CUDA\w*))", portfile))
assert used and used <= known, f"the port sets unknown options: {sorted(used - known)}"

features = re.search(r"FEATURES\n(.*?)\)", portfile, re.S).group(1).split()
assert set(features[::2]) == set(manifest["features"]), "the features differ"
assert set(manifest["default-features"]) <= set(manifest["features"])

source = re.search(r'SOURCE_PATH "\$\{CURRENT_PORT_DIR\}/([./]+)"', portfile).group(1)
assert (port / source).resolve() == root.resolve(), "SOURCE_PATH is not the checkout"
print(f"vcpkg port {version}: {len(used)} options, features {', '.join(sorted(features[::2]))}")
