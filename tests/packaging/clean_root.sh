#!/bin/sh
# clean_root.sh SOURCE_DIR BUILD_DIR [SUITE]: installs the packages of a build with apt in a fresh
# Debian that has nothing else, and uses them there. Needs root, debootstrap and a mirror.
set -eu
source=$1 build=$2 suite=${3:-bookworm}
[ "$(id -u)" = 0 ] || { echo "skipped: not root"; exit 77; }
command -v debootstrap > /dev/null || { echo "skipped: debootstrap is missing"; exit 77; }
root=$(mktemp -d)
trap 'umount "$root/proc" 2> /dev/null || true; rm -rf "$root"' EXIT INT TERM

echo "== a fresh $suite"
debootstrap --variant=minbase "$suite" "$root" > "$root.log" 2>&1 ||
    { tail -n 5 "$root.log"; rm -f "$root.log"; exit 1; }
rm -f "$root.log"
for file in /etc/apt/sources.list /etc/apt/apt.conf /etc/resolv.conf; do # the same mirror
    if [ -e $file ]; then cp $file "$root$file"; fi
done
cp -r /etc/apt/sources.list.d /etc/apt/apt.conf.d "$root/etc/apt/" 2> /dev/null || true
mkdir "$root/debs" "$root/golden"
(cd "$build" && cpack -G DEB -B "$root/debs" > /dev/null)
cp -r "$source/tests/golden/data/awq_gemm_g128" "$root/golden/"
cp "$source/tests/consumer/project/multiply.c" "$source/tests/consumer/project/list.c" "$root/"
mount -t proc proc "$root/proc"
inside() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive \
    chroot "$root" sh -euc "$1"; }

echo "== the command alone"
inside 'apt-get -q update && apt-get -qy install ./debs/qk-tools_*.deb' > "$root/apt.log" 2>&1 ||
    { tail -n 20 "$root/apt.log"; exit 1; }
inside 'qk --version; qk inspect golden/awq_gemm_g128; qk verify golden/awq_gemm_g128'

echo "== the libraries"
inside 'apt-get -qy install gcc libc6-dev pkg-config ./debs/libqk*.deb' > "$root/apt.log" 2>&1 ||
    { tail -n 20 "$root/apt.log"; exit 1; }
inside 'gcc multiply.c -o shared $(pkg-config --cflags --libs qk-shared) && ./shared
        gcc multiply.c -o static $(pkg-config --cflags --libs qk) && ./static
        gcc list.c -o list $(pkg-config --cflags --libs qk_io) && ./list
        ldd shared static'

echo "== gone again"
inside 'apt-get -qy purge libqk-dev qk-tools "libqk[0-9]*"' > "$root/apt.log" 2>&1
if find "$root/usr" -name '*libqk*' | grep .; then echo "FAIL: files are left"; exit 1; fi
echo "ok"
