"""The command's sources, and the library's without its kernels, compile as one file each, which is
how tools/demo builds them in half the time: no two of them define the same name.

    one_file.py REPOSITORY CXX
"""
import pathlib
import re
import subprocess
import sys

repository, compiler = pathlib.Path(sys.argv[1]), sys.argv[2]
failed = False
for folder, target in (("src", "qk_add_objects(qk_src"), ("cli", "add_executable(qk_command")):
    lists = (repository / folder / "CMakeLists.txt").read_text("utf-8")
    start = lists.index(target)
    sources = re.findall(r"[\w/]+\.cpp", lists[start:lists.index(")", start)])
    apart = {name for names in re.findall(r"set_source_files_properties\(([^)]*?)PROPERTIES\s+"
                                          r"SKIP_UNITY_BUILD_INCLUSION ON", lists)
             for name in names.split()}
    together = [name for name in sources if name not in apart]
    if len(together) < 20:
        sys.exit(f"{folder}/CMakeLists.txt: only {together} would be one file")
    done = subprocess.run(
        [compiler, "-std=c++20", "-fsyntax-only", "-x", "c++", "-I", repository / "include",
         "-I", repository / "src", "-I", repository / "kernels", "-I", repository / folder, "-"],
        input="".join(f'#include "{name}"\n' for name in together), text=True, capture_output=True)
    if done.returncode:
        failed = True
        print("\n".join(line for line in done.stderr.splitlines() if "error:" in line))
        print(f"{folder}: rename one, or name a file in {folder}/CMakeLists.txt, "
              "SKIP_UNITY_BUILD_INCLUSION")
sys.exit(failed)
