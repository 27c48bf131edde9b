"""Forked children: they multiply, destroy what they inherit, and end; other ways to a process.

Each case is a program of its own: its parent has no threads but the ones it starts, and one that
hangs is stopped.
"""
import subprocess
import sys

from common import GOLDEN, unittest

BEGINNING = f"""
import gc, multiprocessing, os, sys, threading
import numpy as np
import qk

random = np.random.default_rng(1)
w = qk.quantize(random.standard_normal((256, 256)).astype("f"))
x = random.standard_normal((5, 256)).astype("f")
GOLDEN = {str(GOLDEN)!r}

def ended(pid):
    status = os.waitpid(pid, 0)[1]
    assert status == 0, f"the child ended with {{status}}"

def same(context=None):
    with context or qk.current_context():
        assert np.array_equal(qk.linear(x, w), y)

"""


class Fork(unittest.TestCase):
    def run_alone(self, program, threads=2):
        program = f"{BEGINNING}\nwith qk.Context(threads={threads}) as context:\n" \
            f"    y = qk.linear(x, w)\n{program}\nprint('done')"
        result = subprocess.run([sys.executable, "-W", "ignore", "-c", program],
                                capture_output=True, text=True, timeout=60)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertTrue(result.stdout.endswith("done\n"), result.stdout)

    def test_children_multiply_and_end(self):
        for end in ("sys.exit(0)", "os._exit(0)"):
            self.run_alone(f"""
child = os.fork()
if child == 0:
    same(); same(context); same(qk.Context(threads=2))
    {end}
ended(child)
same(context)
""")

    def test_children_destroy_what_they_inherit(self):
        self.run_alone("""
def work():
    global context, w
    same(context)
    context.close()
    del context, w
    gc.collect()

process = multiprocessing.get_context("fork").Process(target=work)
process.start(); process.join()
assert process.exitcode == 0, process.exitcode
same(context)
""")

    def test_pools_of_processes(self):
        self.run_alone("""
def product(i):
    return qk.linear(x[i:i + 1], w)

def refused(i):
    qk.linear(x[:, :i], w)

with multiprocessing.get_context("fork").Pool(2) as pool:
    for i, row in enumerate(pool.map(product, range(5))):
        assert np.array_equal(row, qk.linear(x[i:i + 1], w))
    try:
        pool.apply(refused, (63,))
    except qk.CallError as error:
        assert (error.name, str(error)) == ("QK_ERROR_SHAPE", "w: k is 256, x has k 63"), error
    else:
        raise AssertionError("nothing was refused")
""")

    def test_a_call_of_another_thread_does_not_hold_up_the_child(self):
        self.run_alone("""
held, over = threading.Event(), threading.Event()

def in_a_call(context):
    with context._lock:
        held.set()
        over.wait()

shared, call = qk.Context(threads=2), None
with shared:
    out = np.empty_like(y)
    call = qk.prepare(x, w, out=out)
thread = threading.Thread(target=in_a_call, args=(shared,))
thread.start()
held.wait()
child = os.fork()
if child == 0:
    same(shared)
    assert np.array_equal(call(), y)
    shared.close()
    os._exit(0)
ended(child)
over.set()
thread.join()
same(shared)
""")

    def test_forks_while_other_threads_multiply(self):
        self.run_alone("""
over = threading.Event()

def work(context):
    while not over.is_set():
        same(context)

shared = qk.Context(threads=2)
threads = [threading.Thread(target=work, args=(c,)) for c in (None, None, shared)]
for thread in threads:
    thread.start()
for i in range(12):
    child = os.fork()
    if child == 0:
        same(shared); same(context); same()
        del shared, context, w
        gc.collect()
        sys.exit(0)
    ended(child)
over.set()
for thread in threads:
    thread.join()
same(shared)
""")

    def test_grus_and_files_in_a_child(self):
        self.run_alone("""
gru = qk.GRU(random.standard_normal((48, 8)), random.standard_normal((48, 16)))
frames = random.standard_normal((30, 8)).astype("f")
gru.calibrate(frames).freeze()
state, model = gru.stream(), qk.load(os.path.join(GOLDEN, "bnb_nf4_nested"))
exact = gru(frames)
state(frames[:10])
name = next(iter(model))
layer = model[name].dequantize()
child = os.fork()
if child == 0:
    assert np.array_equal(state(frames[10:]), exact[10:])
    assert np.array_equal(gru(frames), exact)
    assert np.array_equal(model[name].dequantize(), layer)
    state.close(); gru.close(); model.close()
    sys.exit(0)
ended(child)
assert np.array_equal(state(frames[10:]), exact[10:])
assert np.array_equal(model[name].dequantize(), layer)
""")

    def test_what_is_sent_to_another_process_is_refused(self):
        self.run_alone("""
for method in ("spawn", "forkserver"):
    for owner in (w, context, qk.Layer(w)):
        try:
            multiprocessing.get_context(method).Process(target=print, args=(owner,)).start()
        except TypeError as error:
            assert "cannot be copied or pickled" in str(error), error
        else:
            raise AssertionError("nothing was refused")
""")


if __name__ == "__main__":
    unittest.main()
