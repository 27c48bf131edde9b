"""tools/kernel_resources reads ptxas, names kernels as people do, and tells what differs."""
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("kernel_resources",
                                              str(ROOT / "tools/kernel_resources"))
tool = importlib.util.module_from_spec(importlib.util.spec_from_loader("kernel_resources", loader))
loader.exec_module(tool)

HIDDEN = "40_GLOBAL__N__33ec4cb1_8_dense_cu_9e8f69d6"
FINISH = f"_ZN2qk4cuda{HIDDEN}6finishENS0_10LinearViewEPKfl"
ASK = f"_ZN38_INTERNAL_33ec4cb1_8_dense_cu_9e8f69d62qk4cuda{HIDDEN}3askEi"
# multiply<F16, RingU4<F16>, (ScaleKind)3, 2>(GemvProblem)
GEMV = (f"_ZN2qk4cuda{HIDDEN}8multiplyINS1_3F16ENS1_6RingU4IS3_EELNS1_9ScaleKindE3ELi2EEEv"
        "NS0_11GemvProblemE")
PTXAS = f"""ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '{FINISH}' for 'sm_80'
ptxas info    : Function properties for {FINISH}
    16 bytes stack frame, 44 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 80 registers, used 1 barriers, 1024 bytes smem, 680 bytes cmem[0]
ptxas info    : Compile time = 46.852 ms
ptxas info    : Function properties for {ASK}
    0 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads
ptxas info    : Compiling entry function '{GEMV}' for 'sm_80'
ptxas info    : Function properties for {GEMV}
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 128 registers, used 0 barriers
"""
CELLS = {"finish": "80/56/16/1024", "ask": "-/16/0/0",
         "multiply<F16, RingU4<F16>, Nested, 2>": "128/0/0/0"}


class Reading(unittest.TestCase):
    def test_ptxas_says_what_each_kernel_takes(self):
        self.assertEqual(tool.cells_of(PTXAS), CELLS)

    def test_names_do_not_depend_on_the_folder(self):
        elsewhere = PTXAS.replace("33ec4cb1", "0fedcba9").replace("9e8f69d6", "12345678")
        self.assertEqual(tool.cells_of(elsewhere), CELLS)

    def test_two_kernels_of_one_name_are_an_error(self):
        other = PTXAS.replace("80 registers", "81 registers").replace("33ec4cb1", "0fedcba9")
        with self.assertRaisesRegex(SystemExit, "two kernels are called finish"):
            tool.cells_of(PTXAS + other)

    def test_instances_have_one_place_in_any_number_of_files(self):
        for path, place in (("/x/kernels/cuda/convert/nest.cu", "convert/nest.cu"),
                            ("/kernels/cuda/y/kernels/cuda/gru/step.cu", "gru/step.cu"),
                            ("/b/kernels/cuda/instances/Gemv_Lut4_BF16.cu", "Gemv"),
                            ("/b/kernels/cuda/instances/Rows24_U4_F16.cu", "Rows24"),
                            ("/b/kernels/cuda/instances/Gemv.cu", "Gemv")):
            self.assertEqual(tool.file_of(path), place)


class Table(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.table, tool.TABLE = tool.TABLE, self.folder / "resources.csv"
        self.addCleanup(setattr, tool, "TABLE", self.table)
        self.measured = {("linear/dense.cu", name): dict(CELLS) for name in tool.ARCHITECTURES}

    def write(self):
        tool.write_table("1.2", tool.merged({}, self.measured, {"linear/dense.cu"}))
        return tool.read_table()

    def test_what_is_written_is_read(self):
        ptxas, table = self.write()
        self.assertEqual(ptxas, "1.2")
        self.assertEqual(table["linear/dense.cu", "finish"],
                         dict.fromkeys(tool.ARCHITECTURES, "80/56/16/1024"))
        self.assertEqual(list(tool.differences(table, self.measured)), [])

    def test_every_difference_is_named(self):
        _, table = self.write()
        cells = self.measured["linear/dense.cu", "90a"]
        cells["finish"] = "81/56/16/1024"
        cells["more"] = cells.pop("ask")
        self.assertEqual(
            list(tool.differences(table, self.measured)),
            ["linear/dense.cu: ask, sm_90a: no such kernel, the table has -/16/0/0",
             "linear/dense.cu: finish, sm_90a: 81/56/16/1024, the table has 80/56/16/1024",
             "linear/dense.cu: more, sm_90a: -/16/0/0, the table has no such row"])

    def test_one_file_of_one_architecture_is_taken_over(self):
        _, table = self.write()
        table["gone.cu", "old"] = {"80": "1/0/0/0"}
        table["kept.cu", "kept"] = {"80": "2/0/0/0"}
        new = tool.merged(table, {("linear/dense.cu", "80"): {"finish": "9/0/0/0"}},
                          {"linear/dense.cu", "kept.cu"})
        self.assertEqual(new["linear/dense.cu", "finish"]["80"], "9/0/0/0")
        self.assertEqual(new["linear/dense.cu", "finish"]["90a"], "80/56/16/1024")
        self.assertNotIn("80", new["linear/dense.cu", "ask"])
        self.assertIn(("kept.cu", "kept"), new)
        self.assertNotIn(("gone.cu", "old"), new)

    def names(self, *kernels):
        """What check_names says of a build whose one object registers these."""
        source = self.folder / "a.s"
        texts = [*kernels, f"_ZN2qk4cuda{HIDDEN}13kDeviceTablesE"]  # and a variable
        source.write_text(f'.section {tool.TEXTS}8,"aMS",@progbits,1\n' +
                          "".join(f'.string "{text}"\n' for text in texts))
        subprocess.run(["as", source, "-o", self.folder / "dense.cu.o"], check=True)
        path = "/x/kernels/cuda/linear/dense.cu"
        (self.folder / "qk_cuda.dir").mkdir(exist_ok=True)
        (self.folder / "dense.cu.o").rename(self.folder / "qk_cuda.dir/dense.cu.o")
        (self.folder / "compile_commands.json").write_text(json.dumps(
            [{"directory": str(self.folder), "file": path,
              "command": f"nvcc -c {path} -o qk_cuda.dir/dense.cu.o"}]))
        return list(tool.check_names(self.folder))

    def test_names_must_be_those_of_the_objects(self):
        self.write()
        self.assertEqual(self.names(FINISH, GEMV), [])
        gone = "linear/dense.cu: finish is in the table and in no object"
        self.assertEqual(self.names(GEMV), [gone])
        other = FINISH.replace("6finish", "6begins")
        self.assertEqual(self.names(other, GEMV),
                         ["linear/dense.cu: begins is not in the table", gone])

    def test_every_architecture_has_figures(self):
        del self.measured["linear/dense.cu", "89"]["finish"]
        self.write()
        self.assertEqual(self.names(FINISH, GEMV),
                         ["linear/dense.cu: finish has no figures for sm_89"])

    def test_another_ptxas_is_a_skip(self):
        self.write()
        nvcc = self.folder / "nvcc"
        nvcc.write_text("#!/bin/sh\necho Cuda compilation tools, release 9.9, V9.9.1\n")
        nvcc.chmod(0o755)
        done = subprocess.run([ROOT / "tools/kernel_resources"], text=True, check=False,
                              capture_output=True, env={**os.environ, "CUDACXX": str(nvcc)})
        self.assertEqual(done.returncode, 77, done.stdout + done.stderr)
        self.assertIn("this is 9.9.1", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
