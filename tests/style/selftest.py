"""tools/check_format and tools/check_headers find what is wrong, in a small tree, and name it."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Tree(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name).resolve()
        for name in ["tools/check_format", "tools/check_headers", ".clang-format"]:
            (self.root / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        for top in ["include", "src", "kernels/cpu/x86_avx2", "cli", "ffi", "examples", "bench",
                    "cmake", "tests/style", "tests/abi/previous", "build"]:
            (self.root / top).mkdir(parents=True)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def run_tool(self, *command, **environment):
        done = subprocess.run([str(self.root / command[0]), *map(str, command[1:])], text=True,
                              capture_output=True, check=False, env={**os.environ, **environment})
        return done.returncode, done.stdout + done.stderr


class Format(Tree):
    def setUp(self):
        super().setUp()
        self.write("src/good.cpp", "int x;\n")
        code, said = self.run_tool("tools/check_format")
        if code == 77:
            self.skipTest(said.strip())
        self.assertEqual(code, 0, said)

    def test_deviations_are_named_and_mended(self):
        self.write("src/bad.cpp", "int  x;\n")
        self.write("kernels/worse.cuh", "int  y;\nint  z;\n")
        code, said = self.run_tool("tools/check_format")
        self.assertEqual(code, 1)
        self.assertIn("src/bad.cpp: 1 ", said)
        self.assertIn("kernels/worse.cuh: 2 ", said)
        self.assertNotIn("good", said)
        self.assertEqual(self.run_tool("tools/check_format", "src/good.cpp")[0], 0)
        self.assertEqual(self.run_tool("tools/check_format", "src/bad.cpp", "src/good.cpp")[0], 1)
        self.run_tool("tools/check_format", "--fix")
        self.assertEqual(self.run_tool("tools/check_format")[0], 0)

    def test_generated_and_kept_files_stay(self):
        self.write("src/made.hpp", "// Made by a tool, do not edit.\nint  x;\n")
        self.write("tests/abi/previous/qk.h", "int  x;\n")
        self.assertEqual(self.run_tool("tools/check_format")[0], 0)

    def test_another_version_skips(self):
        for name in ["clang-format", "clang-format-14"]:
            fake = self.write("bin/" + name, "#!/bin/sh\necho 'clang-format version 19.1.7'\n")
            fake.chmod(0o755)
        path = f"{self.root / 'bin'}:{os.environ['PATH']}"
        code, said = self.run_tool("tools/check_format", PATH=path)
        self.assertEqual(code, 77)
        self.assertIn("this one is 19", said)


class Headers(Tree):
    def setUp(self):
        super().setUp()
        entries = []
        for name, flags in [("src/a.cpp", "-DHERE=1"), ("kernels/cpu/x86_avx2/a.cpp", "-DISA=1")]:
            self.write(name, "")
            entries.append({"directory": str(self.root), "file": str(self.root / name),
                            "command": f"ccache g++ {flags} -o {name}.o -c {self.root / name}"})
        self.write("build/compile_commands.json", json.dumps(entries))
        self.write("src/good.hpp", "#pragma once\nstatic_assert(HERE == 1);\n")

    def check(self, *names):
        return self.run_tool("tools/check_headers", self.root / "build",
                             *(self.root / name for name in names))

    def test_whole_headers_pass_with_the_flags_of_their_folder(self):
        self.write("kernels/cpu/x86_avx2/good.hpp", "#pragma once\nstatic_assert(ISA == 1);\n")
        code, said = self.check()
        self.assertEqual(code, 0, said)
        self.assertIn("2 compiled, 0 failed", said)

    def test_a_header_that_needs_another_is_named(self):
        self.write("src/bad.hpp", "#pragma once\ninline uint8_t f() { return 0; }\n")
        code, said = self.check()
        self.assertEqual(code, 1)
        self.assertIn("src/bad.hpp does not compile alone", said)
        self.assertIn("uint8_t", said)
        self.assertEqual(self.check("src/good.hpp")[0], 0)
        self.assertEqual(self.check("src/bad.hpp")[0], 1)

    def test_the_header_that_begins_its_source_is_left_to_the_build(self):
        self.write("src/other/bad.hpp", "#pragma once\nint x = UNKNOWN;\n")
        for text, left in [('#include "bad.hpp"\n', True), ('#include "src/bad.hpp"\n', True),
                           ('#include "other/bad.hpp"\n', False), ("#define UNKNOWN 1\n", False),
                           ('#include <cstdint>\n#include "bad.hpp"\n', False)]:
            self.write("src/bad.hpp", "#pragma once\nint x = UNKNOWN;\n")
            self.write("src/a.cpp", text)
            code, said = self.check()
            self.assertEqual(code, 1)  # src/other/bad.hpp
            self.assertEqual("src/bad.hpp does not" not in said, left, text)
        self.write("src/a.cpp", '#include "bad.hpp"\n')
        self.assertIn("src/bad.hpp does not", self.check("src/bad.hpp")[1])

    def test_other_processors_and_device_code_are_counted(self):
        self.write("kernels/cpu/arm_neon/a.cpp", "")
        self.write("kernels/cpu/arm_neon/lanes.hpp", "#error\n")
        self.write("kernels/cuda/tile.cuh", "#error\n")
        code, said = self.check()
        self.assertEqual(code, 0, said)
        self.assertIn("2 of other builds", said)


if __name__ == "__main__":
    sys.argv[1:] = ["-v"]
    unittest.main()
