"""The examples run to the end and check their own results; llama.py: tests/examples."""
import subprocess
import sys

from common import DENOISER, EXAMPLES, GOLDEN, unittest


def run(*command):
    return subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True)


class Examples(unittest.TestCase):
    def test_load_and_multiply(self):
        for folder in ("awq_gemm_g128", "bnb_nf4_nested", "ct_int4_asym_g32", "gptq_v1_asym_g32"):
            result = run(EXAMPLES / "load_and_multiply.py", GOLDEN / folder)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertIn("y[3] = ", result.stdout)
        result = run(EXAMPLES / "load_and_multiply.py", GOLDEN / "nowhere")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, "^QK_ERROR_FILE: .*nowhere: cannot open")

    def test_quantize_and_save(self):
        result = run(EXAMPLES / "quantize_and_save.py")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("4.46 bits a weight", result.stdout)

    def test_stream_gru(self):
        result = run(EXAMPLES / "stream_gru.py", DENOISER)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("equal bits", result.stdout)

    def test_usage(self):
        for name, arguments in (("load_and_multiply.py", ()), ("load_and_multiply.py", "abc"),
                                ("stream_gru.py", ()), ("stream_gru.py", "ab"),
                                ("quantize_and_save.py", "ab"), ("llama.py", "a")):
            result = run(EXAMPLES / name, *arguments)
            self.assertEqual((result.returncode, result.stdout), (1, ""))
            self.assertRegex(result.stderr, rf"\Ausage: \S*{name} [^\n]+\n\Z")

    def test_without_the_package(self):
        for path in sorted(EXAMPLES.glob("*.py")):
            result = run("-I", "-S", path)  # neither numpy nor qk
            self.assertEqual((result.returncode, result.stdout), (1, ""))
            self.assertRegex(result.stderr, r"\ANo module named [^\n]*: pip install [^\n]+\n\Z")


if __name__ == "__main__":
    unittest.main()
