"""ctypes and the pinned file agree, and the library answers through them."""
import ctypes
import json
import re

from common import REPOSITORY, qk, unittest

from qk import _abi


class Abi(unittest.TestCase):
    def test_the_package_carries_the_pinned_file(self):
        pinned = json.loads((REPOSITORY / "tests" / "abi" / "layout.json").read_text())
        self.assertEqual(pinned, _abi.LAYOUT)

    def test_every_function_has_its_types(self):
        for name, pinned in _abi.LAYOUT["functions"].items():
            function = getattr(_abi.lib, name)
            self.assertEqual(len(function.argtypes), len(pinned["arguments"]), name)
            for (argument, kind), got in zip(pinned["arguments"], function.argtypes):
                wide = "*" in kind or kind in ("int64_t", "size_t")
                self.assertEqual(ctypes.sizeof(got), 8 if wide else 4, f"{name} {argument}")
            size = {"void": None, "const char *": 8, "int64_t": 8}.get(pinned["returns"], 4)
            got = function.restype
            self.assertEqual(None if got is None else ctypes.sizeof(got), size, name)

    def test_every_struct_lies_as_pinned(self):
        self.assertEqual(set(_abi.STRUCTS), set(_abi.LAYOUT["structs"]))
        for name, pinned in _abi.LAYOUT["structs"].items():
            struct = _abi.STRUCTS[name]
            self.assertEqual(ctypes.sizeof(struct), pinned["bytes"], name)
            for field, where in pinned["fields"].items():
                seen = getattr(struct, field)
                self.assertEqual((seen.offset, seen.size), (where["offset"], where["bytes"]), field)

    def test_a_wrong_struct_stops_the_import(self):
        layout = json.loads(json.dumps(_abi.LAYOUT))
        layout["structs"]["qk_tensor_desc"]["fields"]["shape"]["offset"] += 4
        old, _abi.LAYOUT = _abi.LAYOUT, layout
        try:
            with self.assertRaisesRegex(ImportError, "qk_tensor_desc.shape"):
                _abi._make_structs()
        finally:
            _abi.LAYOUT = old

    def test_constants_are_the_header_s(self):
        header = (REPOSITORY / "include" / "qk.h").read_text()
        for name, value in re.findall(r"\b(QK_(?:ERROR|FORMAT|LAYOUT)_\w+)\s*=\s*(\d+)", header):
            self.assertEqual(_abi.CONSTANTS[name], int(value), name)

    def test_version_and_build_info(self):
        c = _abi.CONSTANTS
        self.assertEqual(qk.version(), f"{c['QK_VERSION_MAJOR']}.{c['QK_VERSION_MINOR']}."
                         f"{c['QK_VERSION_PATCH']}")
        self.assertIn(f"abi {c['QK_ABI_VERSION']}", qk.build_info())
        self.assertEqual(qk.device_count("cpu"), 1)


if __name__ == "__main__":
    unittest.main()
