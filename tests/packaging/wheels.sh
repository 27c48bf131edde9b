#!/bin/sh
# wheels.sh SOURCE_DIR [SUITE]: builds the wheel for CPUs, installs it with pip in a Debian that is
# older than this machine's and has no compiler, and runs its tests there. Needs root, debootstrap,
# a mirror and the registry that pip uses.
set -eu
source=$1 suite=${2:-bullseye}
[ "$(id -u)" = 0 ] || { echo "skipped: not root"; exit 77; }
command -v debootstrap > /dev/null || { echo "skipped: debootstrap is missing"; exit 77; }
root=$(mktemp -d)
trap 'umount "$root/proc" "$root/dev/shm" 2> /dev/null || true; rm -rf "$root"' EXIT INT TERM

echo "== the wheel"
"$source/tools/build_wheels" cpu > "$root.log" 2>&1 || { tail -n 20 "$root.log"; exit 1; }
tail -n 1 "$root.log"
wheel=$(ls "$source"/build/wheels/dist/qk-*-py3-none-manylinux*_2_17_"$(uname -m)".whl | grep -v +)

echo "== a fresh $suite"
debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "$suite" "$root" \
    > "$root.log" 2>&1 || { tail -n 5 "$root.log"; rm -f "$root.log"; exit 1; }
rm -f "$root.log"
cp /etc/resolv.conf "$root/etc/"
[ -z "${PIP_CERT:-}" ] || cp "$PIP_CERT" "$root/etc/ssl/certs/ca-certificates.crt"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/dev/shm" # what pools of processes lock with
for folder in tests/golden tests/abi examples ffi/python; do
    mkdir -p "$root/qk/$folder"
done
cp "$wheel" "$root/qk/"
cp -r "$source/tests/golden/data" "$root/qk/tests/golden/"
cp "$source/tests/abi/layout.json" "$root/qk/tests/abi/"
cp -r "$source/include" "$root/qk/"
cp -r "$source/examples/gru" "$root/qk/examples/"
cp -r "$source/ffi/python/tests" "$source/ffi/python/examples" "$root/qk/ffi/python/"
inside() {
    env -i PATH=/usr/sbin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 chroot "$root" sh -euc "$1"
}

inside 'ldd --version | head -n 1; python3 --version; ! command -v cc gcc clang cmake
        python3 -m venv /venv && /venv/bin/pip install -q /qk/qk-*.whl
        cd / && /venv/bin/python -c "import qk; print(qk.__version__, qk.__file__)"'
for test in abi errors checks values multiply golden arrays gru save fork examples; do
    inside "/venv/bin/python /qk/ffi/python/tests/test_$test.py -v" > "$root/log" 2>&1 ||
        { cat "$root/log"; echo "FAIL: $test"; exit 1; }
    grep -h '\.\.\. skipped' "$root/log" || true # with its reason
    echo "$test: $(tail -n 1 "$root/log")"
done
