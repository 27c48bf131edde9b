"""tools/count_tests counts skips apart, with each reason once; tools/plant_bugs says which texts
are gone and which bugs change nothing."""
import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN = """<testsuite tests="5">
<testcase name="A.Passes" status="run"><system-out>fine</system-out></testcase>
<testcase name="A.Fails" status="fail"><failure message="x"/><system-out>no</system-out></testcase>
<testcase name="A.Skips/7  # GetParam() = 7" status="notrun"><skipped message="x"/><system-out>
[ RUN      ] A.Skips/7
a.cpp:3: Skipped
no tool here
[  SKIPPED ] A.Skips/7 (0 ms)
</system-out></testcase>
<testcase name="script" status="notrun"><skipped message="x"/><system-out>looking
skipped: no tool here
</system-out></testcase>
<testcase name="python" status="run"><system-out>test_x ... skipped 'no GPU'
OK (skipped=1)</system-out></testcase>
</testsuite>"""


def load(name):
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / "tools" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


class CountTests(unittest.TestCase):
    def test_counts_and_reasons(self):
        with tempfile.TemporaryDirectory() as folder:
            run, skips = pathlib.Path(folder, "run.xml"), pathlib.Path(folder, "skips")
            run.write_text(RUN)
            tool = [sys.executable, str(ROOT / "tools/count_tests")]
            said = subprocess.run([*tool, "release", str(run), str(skips)], check=True, text=True,
                                  capture_output=True).stdout
            self.assertEqual(said.split(), ["2", "1", "3"])
            said = subprocess.run([*tool, "--reasons", str(skips)], check=True, text=True,
                                  capture_output=True).stdout
            self.assertEqual(said.splitlines(), [
                "skipped: no tool here (release A.Skips/7, release script)",
                "skipped: no GPU (release python)"])


class PlantBugs(unittest.TestCase):
    def test_check(self):
        tool = load("plant_bugs")
        good = tool.Bug("tools/count_tests", "SHOWN = 3", "SHOWN = 4",
                        ("test_smoke *",), "")
        self.assertEqual(tool.check([good]), [])
        for wrong in (good._replace(text="nothing says this"), good._replace(planted=good.text),
                      good._replace(file="no/such.cpp"), good._replace(text="\n"),
                      good._replace(tests=("no_such_program *",))):
            self.assertEqual(len(tool.check([wrong])), 1, wrong)
        self.assertEqual(len(tool.check([good, good])), 1)


if __name__ == "__main__":
    unittest.main()
