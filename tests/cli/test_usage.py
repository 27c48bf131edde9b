"""The command line itself: help, wrong usage, exit codes, and what is said about them."""
import contextlib
import json
import math
import os
import pty
import re
import select
import signal
import subprocess
import unittest

from harness import COMMAND, GOLDEN, REFUSED, Case, floats, safetensors, too_large_for_f16

COMMANDS = [["info"], ["inspect"], ["verify"], ["dequantize"], ["quantize"], ["multiply"],
            ["gru", "quantize"], ["gru", "run"], ["gru", "info"], ["gru", "export"]]
NF4 = GOLDEN / "bnb_nf4"
DENSE = GOLDEN / "dense"


class Usage(Case):
    def test_info(self):
        info = self.run_json("info")
        self.assertRegex(info["version"], r"^\d+\.\d+\.\d+$")
        self.assertEqual(info["cpu_devices"], 1)
        self.assertIn(info["version"], self.run_qk("info").stdout)
        self.assertIn(info["build"], self.run_qk("--version").stdout)
        self.assertEqual(self.run_json("info", "--threads", "1")["threads"], 1)
        for name in info["instruction_sets"]:
            self.assertIn(name, self.run_qk("info").stdout)

    def test_isa(self):
        sets = self.run_json("info")["instruction_sets"]
        self.assertEqual(sets[0], "generic")
        for name in sets:  # a global option, and every computing command's
            capped = self.run_json("info", "--isa", name)["instruction_sets"]
            self.assertIn(" ".join(capped), self.run_qk("--isa", name, "info").stdout)
            self.assertEqual((capped[0], capped[-1]), ("generic", name))
            if name.startswith("avx512_"):
                self.assertEqual(capped[1:-1], ["avx2", "avx512"])
            if name == "avx_vnni":
                self.assertEqual(capped[1:-1], ["avx2"])
        for everything in "all", ",".join(sets):
            self.assertEqual(self.run_json("info", "--isa", everything)["instruction_sets"], sets)
        for wrong in ("sse9", "avx2,sse9", "AVX2", ","):
            self.assertIn("accepted are all, generic, avx2,",
                          self.fails(2, "info", "--isa", wrong))
        lacking = "avx2" if "neon" in sets else "neon"
        self.assertIn(f"--isa: {lacking} cannot run here; this processor and build have generic",
                      self.fails(4, "info", "--isa", lacking))

    def test_isa_changes_no_bit(self):
        outputs = []
        for name in ("all", "generic"):
            out = self.folder / f"{name}.safetensors"
            self.run_qk("--isa", name, "quantize", GOLDEN / "dense", out)
            outputs.append(out.read_bytes())
        self.assertEqual(*outputs)

    def test_help_fits_a_terminal(self):
        self.assertIn("Exit codes", self.run_qk("--help").stdout)
        for command in [[], ["gru"], *COMMANDS]:
            text = self.run_qk(*command, "--help").stdout
            self.assertLess(max(map(len, text.splitlines())), 80, text)
            self.assertNotIn("TEXT", text)
            self.assertIn(" ".join(["Usage: qk", *command, "[OPTIONS]"]), text)
            if command not in ([], ["gru"], ["info"]):
                self.assertIn("Example", text)

    def test_one_sentence_and_where_to_read_more(self):
        for arguments, said in (
                ([], "a command is needed: info, inspect, verify, dequantize, quantize, convert, "
                     "multiply or gru ('qk --help')"),
                (["quant", "x"], "'quant' is not a command of qk; did you mean 'quantize'? "
                                 "('qk --help')"),
                (["isnpect", "x"], "'isnpect' is not a command of qk; did you mean 'inspect'? "
                                   "('qk --help')"),
                (["xyzzy"], "'xyzzy' is not a command of qk ('qk --help')"),
                (["gru"], "a command is needed: export, info, quantize or run ('qk gru --help')"),
                (["gru", "rn"], "'rn' is not a command of qk gru; did you mean 'run'? "
                                "('qk gru --help')"),
                (["--json", "info"], "'--json' is not an option of qk; a command's options follow "
                                     "its name ('qk --help')"),
                (["info", "--nope"], "'--nope' is not an option of qk info ('qk info --help')"),
                (["inspect", "a", "--tensor"], "'--tensor' is not an option of qk inspect; did you "
                                               "mean '--tensors'? ('qk inspect --help')"),
                (["multiply", "--m", "0", "a"], "'--m' is not an option of qk multiply; did you "
                                                "mean '--mode'? ('qk multiply --help')"),
                (["inspect"], "inspect needs FILE ('qk inspect --help')"),
                (["inspect", ""], "FILE is empty ('qk inspect --help')"),
                (["inspect", "a", "b"], "'b' is one argument too many for qk inspect "
                                        "('qk inspect --help')"),
                (["inspect", "a", "--json=x"], "--json takes no value ('qk inspect --help')"),
                (["verify", "a", "--threads", "-1"], "--threads -1: accepted are 0 to 1024 "
                                                     "('qk verify --help')"),
                (["verify", "a", "--threads", "1e3"], "--threads 1e3: accepted are 0 to 1024 "
                                                      "('qk verify --help')"),
                (["verify", "a", "--threads"], "--threads needs a value ('qk verify --help')"),
                (["dequantize", "a"], "dequantize needs OUT ('qk dequantize --help')"),
                (["dequantize", "a", "b", "--dtype", "f8"],
                 "--dtype f8: accepted are f16, bf16 or f32 ('qk dequantize --help')"),
                (["quantize", "a", "b", "--format", "int3"],
                 "--format int3: accepted are nf4, fp4, int4, int8, "
                 "mxfp4, nvfp4, q4_0 or q8_0 ('qk quantize --help')"),
                (["multiply", "a", ""], "LAYER is empty ('qk multiply --help')"),
                (["multiply", "a", "--rows", "0"],
                 "--rows 0: accepted are 1 to 65536 ('qk multiply --help')"),
                (["multiply", "a", "--rows", "9" * 40],
                 f"--rows {'9' * 40}: accepted are 1 to 65536 ('qk multiply --help')"),
                (["multiply", "a", "--rows", "1", "--rows", "2"],
                 "--rows may be given once ('qk multiply --help')"),
                (["multiply", "a", "--device", "tpu"],
                 "--device tpu: accepted are cpu, cuda and cuda:INDEX"),
                (["multiply", "a", "--device", "cuda: 1"],
                 "--device cuda: 1: accepted are cpu, cuda and cuda:INDEX"),
                (["gru", "quantize", "a", "b"],
                 "gru quantize needs --calibrate or --ranges-in "
                 "('qk gru quantize --help')")):
            self.assertEqual(self.fails(2, *arguments), f"qk: {said}\n")

    def test_json_changes_no_error(self):
        self.assertIn("FILE", self.fails(2, "inspect", "--json"))
        self.assertIn("cannot open", self.fails(3, "inspect", self.folder / "no", "--json"))
        self.assertIn("quantized already",
                      self.fails(4, "quantize", NF4, self.folder / "out", "--json"))

    def test_unknown_layers(self):
        q = "model.layers.0.self_attn.q_proj"
        for wrong in ("q_proj", "self_attn.q_proj", q + ".weight", q.replace("attn", "atn"),
                      q.replace("q_proj", "qproj")):
            said = self.fails(2, "multiply", NF4, wrong)
            self.assertEqual(said, f"qk: no layer '{wrong}' in the file; did you mean '{q}'?\n")
        said = self.fails(2, "multiply", NF4, "x\x1b\x7fy" * 30)
        self.assertIn("x??y", said)
        self.assertIn("'qk inspect' lists the layers", said)
        said = self.fails(2, "dequantize", NF4, self.folder / "out", "--layer", "up_proj")
        self.assertIn("no layer matches 'up_proj'; did you mean 'model.layers.0.mlp.up_proj'?",
                      said)

    def test_cuda_that_is_not_there(self):
        info = self.run_json("info")
        if "cuda" not in info["build"]:
            said = self.fails(4, "multiply", NF4, "--device", "cuda")
            self.assertIn("this qk was built without CUDA; configure it with -DQK_CUDA=ON", said)
        elif info["cuda_devices"] == 0:
            said = self.fails(4, "multiply", NF4, "--device", "cuda")
            self.assertIn("no GPU, or no driver for it, was found", said)
        else:
            said = self.fails(4, "multiply", NF4, "--device", "cuda:99")
            self.assertIn("--device cuda:99: there", said)


class Lists(Case):
    """Options that take several values, in front of, between and behind the others."""

    def kept(self, *arguments):
        out = self.folder / "out.safetensors"
        done = self.run_qk("quantize", "--force", "--json",
                           *(out if a == "OUT" else a for a in arguments))
        done = json.loads(done.stdout)
        return [name.rsplit(".", 1)[1] for name in done["dense_layers"]]

    def test_exclude(self):
        mlp = ["down_proj", "gate_proj", "up_proj"]
        two = ["--exclude", "*mlp*", "*q_proj"]
        for arguments in ([DENSE, "OUT", *two], [*two, DENSE, "OUT"], [DENSE, *two, "OUT"],
                          [DENSE, "OUT", *two, "-q"], [*two, DENSE, "OUT", "-q"],
                          ["--threads", 1, *two, "--block", 64, DENSE, "OUT"],
                          [DENSE, "OUT", "--exclude", "*mlp*", "--exclude", "*q_proj"],
                          [DENSE, "--exclude=*mlp*", "*q_proj", "OUT"],
                          ["--exclude", "*mlp*", "*q_proj", "--", DENSE, "OUT"]):
            self.assertEqual(self.kept(*arguments), mlp + ["q_proj"], arguments)
        for arguments in ([DENSE, "OUT", "--exclude", "*mlp*"],
                          ["--exclude", "*mlp*", DENSE, "OUT"],
                          [DENSE, "--exclude", "*mlp*", "OUT"],
                          ["--exclude", "*mlp*", DENSE, "OUT", "-q"],
                          ["--exclude", "*mlp*", "--include", "*_proj", DENSE, "OUT"]):
            self.assertEqual(self.kept(*arguments), mlp, arguments)
        self.assertEqual(self.fails(2, "quantize", DENSE, "--exclude", "*mlp*"),
                         "qk: quantize needs OUT ('qk quantize --help')\n")

    def test_layers(self):
        out = self.folder / "out.safetensors"
        done = self.run_json("dequantize", "--layer", "*q_proj", "*k_proj", NF4, out)
        self.assertEqual(done["decoded_layers"], 2)


class Outputs(Case):
    """A file named *.safetensors, or a directory: never a directory by mistake."""

    def test_other_files(self):
        for name in ("out.bin", "x.safetensors.bak", "x.gguf.bak", "a.b/out.pt", "out.SAFETENSORS",
                     "model.v2", ".a.json"):
            out = self.folder / name
            out.parent.mkdir(exist_ok=True)
            for command in (["dequantize", NF4], ["quantize", DENSE]):
                self.assertEqual(self.fails(2, *command, out, "--force"),
                                 f"qk: {out}: the output is a file named *.safetensors or "
                                 f"*.gguf, or a directory; {out}/ is a directory whatever its "
                                 "name\n")

    def test_directories(self):
        (self.folder / "there.bin").mkdir()
        for name in ("out", "Llama-3.1-8B", "Qwen2.5-7B-nf4", "phi-3.5", ".hidden", "there.bin",
                     "new.bin/", "x.safetensors/"):
            self.run_qk("dequantize", NF4, f"{self.folder}/{name}")
            self.assertEqual(sorted(os.listdir(self.folder / name)),
                             ["config.json", "model.safetensors"], name)

    def test_files(self):
        for name in ("a.safetensors", "a.b.safetensors", "model-00001-of-00002.safetensors"):
            self.run_qk("dequantize", NF4, self.folder / name)
            self.assertTrue((self.folder / name).is_file())


class ExitCodes(Case):
    """docs/cli.md's table: every code, from every command that has it."""

    def setUp(self):
        super().setUp()
        self.nan = self.write("nan.safetensors",
                              safetensors({"a.weight": ("F32", [1, 16], floats([math.nan] * 16))}))
        self.damaged = self.write("damaged.safetensors", b"nothing of the kind")
        self.denied = self.folder / "denied.safetensors"
        self.gru = GOLDEN.parents[2] / "examples" / "gru"

    def test_every_code_of_every_command(self):
        out, missing = self.folder / "out.safetensors", self.folder / "missing"
        model, data = self.gru / "denoiser.safetensors", self.gru / "calibration.f32"
        quantize = ["--calibrate", data]
        gru, h = self.folder / "gru.qkg", self.folder / "h.f32"
        self.run_qk("gru", "quantize", model, gru, *quantize)
        gru.with_suffix(".f32").touch()
        doubles = self.write("x.npy", b"\x93NUMPY\x01\0\x46\0{'descr': '<f8', "
                                      b"'fortran_order': False, 'shape': (1, 1), }" + b" " * 12)
        weight = ("F32", [1, 64], floats(too_large_for_f16(64)))
        large = self.write("large.safetensors", safetensors({"a.weight": weight}))
        square = self.write("square.safetensors",
                            safetensors({f"weight_{n}_l0": ("F32", [4, 4], bytes(64))
                                         for n in ("ih", "hh")}))
        cases = {
            "info": {0: [[]], 2: [["--rows", 1]]},
            "inspect": {0: [[NF4], [GOLDEN / REFUSED[0]]], 2: [[]],
                        3: [[missing], [self.damaged], [self.folder]]},
            "verify": {0: [[NF4]], 1: [[self.nan]], 2: [[NF4, "--threads", "x"]],
                       3: [[missing], [self.damaged]], 4: [[GOLDEN / REFUSED[0]]]},
            "dequantize": {0: [[NF4, out, "--force"]], 1: [[DENSE, out], [NF4, self.nan]],
                           2: [[NF4, out, "--layer", "x"], [NF4, self.folder / "out.bin"]],
                           3: [[missing, out], [self.damaged, out], [NF4, missing / out.name]],
                           4: [[GOLDEN / REFUSED[0], out]]},
            "quantize": {0: [[DENSE, out, "--force"]], 1: [[self.nan, out], [DENSE, self.nan]],
                         2: [[DENSE, out, "--group", 7], [DENSE, self.folder / "out.bin"]],
                         3: [[missing, out], [self.damaged, out], [DENSE, missing / out.name]],
                         4: [[NF4, out]]},
            "multiply": {0: [[NF4, "--repeat", 1]], 1: [[large, "a", "--dtype", "f16"]],
                         2: [[NF4, "x"], [NF4, "--device", "x"]],
                         3: [[missing], [self.damaged]], 4: [[DENSE], [NF4, "--mode", "int8"]]},
            "gru quantize": {0: [[model, self.folder / "a.qkg", *quantize, "--force"]],
                             1: [[model, self.nan, *quantize]],
                             2: [[model, self.folder / "b.qkg"]],
                             3: [[missing, self.folder / "b.qkg", *quantize],
                                 [model, self.folder / "b.qkg", "--calibrate", "missing.npy"]],
                             4: [[square, self.folder / "b.qkg", *quantize]]},
            "gru run": {0: [[gru, data, h]], 1: [[gru, data, gru.with_suffix(".f32")]],
                        2: [[gru, data, self.folder / "h.txt"]],
                        3: [[missing, data, h], [gru, "missing.npy", h], [self.damaged, data, h]],
                        4: [[gru, doubles, h]]},
            "gru info": {0: [[gru]], 2: [[]], 3: [[missing], [self.damaged]]},
        }
        said = {("verify", 1), ("verify", 4), ("multiply", 1)}  # have a result on stdout as well
        for command, codes in cases.items():
            for code, calls in codes.items():
                for arguments in calls:
                    if (command, code) in said or code == 0:
                        for path in (out, h):
                            path.unlink(missing_ok=True)
                        self.run_qk(*command.split(), *arguments, code=code)
                    else:
                        self.fails(code, *command.split(), *arguments)

    def test_unreadable(self):
        self.denied.write_bytes((NF4 / "model.safetensors").read_bytes())
        self.denied.chmod(0)
        self.folder.chmod(0o755)
        user = 65534 if os.geteuid() == 0 else None  # root may read everything
        done = subprocess.run([*COMMAND, "inspect", self.denied], capture_output=True, text=True,
                              user=user)
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertRegex(done.stderr, r"\Aqk: .*Permission denied\n\Z")

    def test_full_disk_behind_stdout(self):
        with open("/dev/full", "w") as full:
            done = self.run_qk("inspect", NF4, code=3, stdout=full)
        self.assertEqual(done.stderr, "qk: cannot write to standard output\n")

    def test_a_closed_pipe_is_silent(self):
        tensors = {f"layer{i}.weight": ("F32", [1, 1], floats([1])) for i in range(5000)}
        path = self.write("many.safetensors", safetensors(tensors))
        for options in ([], ["--json"]):
            process = subprocess.Popen([*COMMAND, "inspect", path, *options],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            process.stdout.readline()
            process.stdout.close()
            self.assertEqual(process.stderr.read(), b"")
            process.stderr.close()
            self.assertEqual(process.wait(), -signal.SIGPIPE)


class Terminals(Case):
    """What a terminal sees of long work, for each kind of terminal."""

    def setUp(self):
        super().setUp()
        size = 1 << 26
        header = {f"layer{i}.weight": {"dtype": "F32", "shape": [1024, 16384],
                                       "data_offsets": [i * size, (i + 1) * size]}
                  for i in range(4000)}
        text = json.dumps(header).encode()
        self.path = self.write("in.safetensors", len(text).to_bytes(8, "little") + text)
        os.truncate(self.path, 8 + len(text) + 4000 * size)  # a hole: more than any machine reads

    def seen(self, environment, until):
        """What stderr showed of a long `verify` up to `until` or for a second, and at SIGTERM."""
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)
        kept = {k: v for k, v in os.environ.items() if k not in ("TERM", "NO_COLOR")}
        process = subprocess.Popen([*COMMAND, "verify", self.path], stdout=subprocess.DEVNULL,
                                   stderr=slave, env={**kept, **environment})
        os.close(slave)
        text, patience = b"", 60 if until else 1
        while not (until and re.search(until, text)):
            if not select.select([master], [], [], patience)[0]:
                break
            text += os.read(master, 1 << 16)
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(OSError):  # the other end is closed
            while piece := os.read(master, 1 << 16):
                text += piece
        self.assertEqual(process.wait(), -signal.SIGTERM)
        return text

    def test_kinds(self):
        for environment in ({}, {"TERM": ""}, {"TERM": "dumb"}, {"TERM": "dumb", "NO_COLOR": "1"}):
            self.assertEqual(self.seen(environment, None), b"", environment)
        bar = rb"\r\[#*\.*\] +\d+% layer\d"
        for environment in ({"TERM": "xterm"}, {"TERM": "vt100", "NO_COLOR": "1"}):
            text = self.seen(environment, bar)
            self.assertRegex(text, bar)
            self.assertNotIn(b"\x1b", text)
            lines = text.split(b"\r")
            self.assertLess(max(map(len, lines)), 81)
            self.assertEqual((lines[-2].strip(), lines[-1]), (b"", b""))  # wiped at the end


if __name__ == "__main__":
    unittest.main()
