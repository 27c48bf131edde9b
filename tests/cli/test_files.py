"""What qk does to the files it replaces, when the system fails it, and when its input shrinks."""
import json
import os
import shutil
import signal
import stat
import subprocess
import time
import unittest

from harness import COMMAND, GOLDEN, Case, floats, pack, posix, read, safetensors

SHIM = os.environ.get("QK_SHIM", "")


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


class Shimmed(Case):
    def setUp(self):
        super().setUp()
        if not os.path.exists(SHIM):
            self.skipTest("no shim: a sanitizer or another C library comes first")

    def shim(self, arguments, **settings):
        """Runs qk with the shim; (process, whether what it should do has happened)."""
        done = self.folder / "shim.done"
        done.unlink(missing_ok=True)
        env = {**os.environ, "LD_PRELOAD": SHIM, "QK_SHIM_DONE": str(done)}
        env.update({f"QK_SHIM_{k.upper()}": str(v) for k, v in settings.items()})
        ran = subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True,
                             env=env, timeout=120)
        happened = done.exists()
        done.unlink(missing_ok=True)
        return ran, happened


def shard(folder):
    """A sharded copy of a golden model."""
    folder.mkdir()
    shutil.copy(GOLDEN / "bnb_nf4" / "config.json", folder)
    tensors = sorted(read(GOLDEN / "bnb_nf4").items())
    weights = {}
    for i in range(2):
        name = f"model-0000{i + 1}-of-00002.safetensors"
        part = dict(tensors[i::2])
        (folder / name).write_bytes(safetensors(part, {"format": "pt"}))
        weights.update({tensor: name for tensor in part})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    return sorted(p.name for p in folder.iterdir())


class Failures(Shimmed):
    CALLS = ("rename", "fsync", "link", "unlink", "create", "pwrite64", "fchmod", "close")

    def sweep(self, arguments, prepare, out, calls):
        """The n-th call fails, for every call and n: all files are old or all are new."""
        for call in self.CALLS:
            at = 0
            while True:
                prepare()
                old = contents(out)
                ran, happened = self.shim(arguments, call=call, at=at)
                now = contents(out)
                if not happened:
                    self.assertEqual(ran.returncode, 0, ran.stderr)
                    self.new = now
                    self.assertGreater(at, 0 if call in calls else -1, call)
                    break
                message = f"{call} {at}: {ran.stderr}"
                in_place = "is complete and in its place" in ran.stderr
                if ran.returncode == 0 and call == "unlink":
                    now = {n: b for n, b in now.items() if not n.endswith(".old")}
                if ran.returncode == 0 or in_place:
                    self.assertNotEqual(now, old, message)
                    self.assertFalse([n for n in now if ".qk-" in n], message)
                else:
                    self.assertEqual(ran.returncode, 3, message)
                    self.assertRegex(ran.stderr, r"\Aqk: [^\n]+\n\Z")
                    self.assertEqual(now, old, message)
                    if out.name == "fresh":
                        self.assertFalse(out.exists(), message)
                at += 1
                self.assertLess(at, 60)

    def test_over_a_sharded_model(self):
        out = self.folder / "model"

        def prepare():
            shutil.rmtree(out, ignore_errors=True)
            shard(out)
            os.chmod(out / "config.json", 0o640)

        self.sweep(["dequantize", out, out, "--force", "-q"], prepare, out,
                   self.CALLS)
        self.assertEqual(sorted(self.new), ["config.json", "model.safetensors"])

    def test_into_a_new_directory(self):
        out = self.folder / "fresh"
        self.sweep(["quantize", GOLDEN / "dense", out, "-q"],
                   lambda: shutil.rmtree(out, ignore_errors=True), out,
                   ("rename", "fsync", "create", "pwrite64"))
        self.assertEqual(sorted(self.new), ["config.json", "model.safetensors"])


class Replacing(Case):
    def test_shards_of_the_old_model_go(self):
        out = self.folder / "model"
        shard(out)
        (out / "other.safetensors").write_bytes(b"mine")
        (out / "tokenizer.json").write_text("{}")
        (out / "config.json").unlink()
        self.assertIn("index.json exists; --force",
                      self.fails(1, "dequantize", GOLDEN / "bnb_nf4", out))
        shutil.copy(GOLDEN / "bnb_nf4" / "config.json", out)
        done = self.run_qk("dequantize", out, out, "--force")
        self.assertEqual(sorted(os.listdir(out)), ["config.json", "model.safetensors",
                                                   "other.safetensors", "tokenizer.json"])
        self.assertRegex(done.stderr, r"\Aqk: removed 3 files[^\n]+\n\Z")
        self.assertEqual(self.run_json("inspect", out)["quantized_layers"], 0)
        truth = read(GOLDEN / "bnb_nf4" / "truth.safetensors")
        written = read(out / "model.safetensors")
        for name, tensor in truth.items():
            self.assertEqual(written[name], tensor)

    def test_an_index_reaches_nothing_else(self):
        out = self.folder / "model"
        out.mkdir()
        (self.folder / "above.safetensors").write_bytes(b"mine")
        (out / "notes.txt").write_text("mine")
        weights = {"a": "../above.safetensors", "b": "notes.txt", "c": "absent.safetensors",
                   "d": 5, "e": ".hidden.safetensors"}
        for index in (json.dumps({"weight_map": weights}), "{", "[]", '{"weight_map": 1}'):
            (out / "model.safetensors.index.json").write_text(index)
            done = self.run_json("dequantize", GOLDEN / "bnb_nf4", out, "--force")
            self.assertEqual(done["removed"], [str(out / "model.safetensors.index.json")])
            self.assertEqual(sorted(os.listdir(out)),
                             ["config.json", "model.safetensors", "notes.txt"])
        self.assertTrue((self.folder / "above.safetensors").exists())

    @posix
    def test_modes_links_and_special_files(self):
        out = self.folder / "out.safetensors"
        out.write_text("old")
        out.chmod(0o600)
        link = self.folder / "link.safetensors"
        link.symlink_to("out.safetensors")
        self.fails(1, "dequantize", GOLDEN / "bnb_nf4", link)
        self.run_qk("dequantize", GOLDEN / "bnb_nf4", link, "--force", "-q")
        self.assertTrue(link.is_symlink())
        self.assertEqual(stat.S_IMODE(out.stat().st_mode), 0o600)
        self.assertEqual(len(read(out)), 8)
        pipe = self.folder / "pipe.safetensors"
        os.mkfifo(pipe)
        for force in ([], ["--force"]):
            self.assertIn("cannot replace: it is a pipe",
                          self.fails(3, "dequantize", GOLDEN / "bnb_nf4", pipe, *force))
        self.assertTrue(stat.S_ISFIFO(pipe.stat().st_mode))

    def test_killed_run(self):
        size = 1 << 20
        header = {f"layer{i}.weight": {"dtype": "F32", "shape": [256, 1024],
                                       "data_offsets": [i * size, (i + 1) * size]}
                  for i in range(1024)}
        path = self.write("in.safetensors", pack(header))
        os.truncate(path, path.stat().st_size + 1024 * size)
        out = self.folder / "out"
        process = subprocess.Popen([*COMMAND, "quantize", str(path), str(out), "-q"])
        deadline = time.monotonic() + 60
        while not out.exists() or len(os.listdir(out)) < 2:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.assertTrue(all(name.startswith(".qk-") for name in os.listdir(out)))
        self.run_qk("quantize", GOLDEN / "dense", out)
        self.assertEqual(sorted(os.listdir(out)), ["config.json", "model.safetensors"])

    def test_byte_counts(self):
        weight = ("F32", [4, 64], floats([i / 256 for i in range(256)]))
        path = self.write("in.safetensors", safetensors(
            {"a.weight": weight, "norm.weight": ("F16", [3], bytes(6))}))
        out = self.folder / "out.safetensors"
        done = self.run_json("quantize", path, out)
        self.assertEqual(done["input_bytes"], 4 * 256 + 6)
        self.assertEqual(done["output_bytes"], sum(len(c) for _, _, c in read(out).values()))
        text = self.run_qk("quantize", path, out, "--force").stdout
        self.assertIn("1.0 kB before", text)


class Shrinking(Shimmed):
    """The checkpoint is cut to no bytes while a command reads it: a sentence and exit code 3."""

    def shrinks(self, *arguments, prepare=None):
        path = self.folder / "in.safetensors"
        reached, at = 0, 0
        while True:
            shutil.copy(prepare, path)
            before = {p for p in self.folder.rglob("*")}
            ran, happened = self.shim([a if a is not None else path for a in arguments],
                                      truncate=path, at=at)
            if not happened:
                self.assertEqual(ran.returncode, 0, ran.stderr)
                for left in {p for p in self.folder.rglob("*")} - before:
                    left.unlink()
                return reached
            # After the last look at the file nothing is wrong with what was read before.
            if ran.returncode != 0:
                self.assertEqual(ran.returncode, 3, f"{arguments} {at}: {ran.stderr}")
                self.assertEqual(ran.stderr, f"qk: {path}: became shorter while it was read\n")
                self.assertEqual(ran.stdout, "")
                self.assertEqual({p for p in self.folder.rglob("*")}, before)
                reached += 1
            for left in {p for p in self.folder.rglob("*")} - before:
                left.unlink()
            at += 1 if at < 8 else 1 + at // 4

    def test_every_command(self):
        golden, dense = GOLDEN / "awq_gemm_g128" / "model.safetensors", GOLDEN / "dense"
        dense = next(dense.glob("*.safetensors"))
        quantized = self.folder / "made.safetensors"
        self.run_qk("quantize", dense, quantized, "-q")
        out = self.folder / "out.safetensors"
        self.assertGreater(self.shrinks("inspect", None, prepare=golden), 0)
        self.assertGreater(self.shrinks("verify", None, "-q", prepare=quantized), 1)
        self.assertGreater(self.shrinks("quantize", None, out, "-q", prepare=dense), 1)
        self.assertGreater(self.shrinks("dequantize", None, out, "-q", prepare=quantized), 1)
        self.assertGreater(self.shrinks("dequantize", quantized, out, "--report", None, "-q",
                                        prepare=dense), 1)
        self.assertGreater(self.shrinks("multiply", None, "--repeat", 2, prepare=quantized), 1)

    def test_other_origins_stay_fatal(self):
        path = self.folder / "in.safetensors"
        shutil.copy(GOLDEN / "awq_gemm_g128" / "model.safetensors", path)
        ran, _ = self.shim(["verify", path], truncate=path, at=1, signal=int(signal.SIGBUS))
        self.assertEqual(ran.returncode, -signal.SIGBUS, ran.stderr)


if __name__ == "__main__":
    unittest.main()
