"""Configuring without a package names what to install and which option does without.

    missing_packages.py REPOSITORY CMAKE WORK
"""
import subprocess
import sys

repository, cmake, work = sys.argv[1:]
WANTED = {
    "jansson": "libjansson-dev (Debian, Ubuntu) or jansson-devel (Fedora), or "
               "configure with -DQK_BUILD_IO=OFF.",
    "CLI11": "libcli11-dev (Debian, Ubuntu) or cli11-devel (Fedora), or "
             "configure with -DQK_BUILD_CLI=OFF.",
    "GTest": "libgtest-dev (Debian, Ubuntu) or gtest-devel (Fedora), or "
             "configure with -DQK_BUILD_TESTS=OFF.",
}
HIDDEN = {"jansson": ["-DQK_JANSSON_INCLUDE=QK_JANSSON_INCLUDE-NOTFOUND",
                      "-DCMAKE_IGNORE_PATH=/usr/include;/usr/local/include"],
          "CLI11": ["-DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON"],
          "GTest": ["-DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON"]}
for name, options in HIDDEN.items():
    done = subprocess.run([cmake, "-S", repository, "-B", f"{work}/{name}", *options],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = " ".join(done.stdout.split())
    if done.returncode == 0 or f"{name} is missing. Install {WANTED[name]}" not in said:
        sys.exit(f"{name}: exit {done.returncode}: {done.stdout}")
