"""Conan 2 recipe of qk. From a checkout: conan create packaging/conan [-o "&:with_io=False"]"""
import os
import re

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load


class QkConan(ConanFile):
    name = "qk"
    license = "MIT"
    description = "4-bit weights and integer GRUs behind one C header"
    topics = ("quantization", "awq", "gptq", "nf4", "gru", "inference")
    package_type = "static-library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"with_io": [True, False], "with_cuda": [True, False]}
    default_options = {"with_io": True, "with_cuda": False}

    @property
    def _root(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        text = load(self, os.path.join(self._root, "CMakeLists.txt"))
        self.version = re.search(r"project\(qk VERSION ([0-9.]+)", text).group(1)

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "cmake/*", "include/*", "src/*", "kernels/*"):
            copy(self, pattern, self._root, self.export_sources_folder)

    def configure(self):
        # C outside, and no C++ runtime inside: neither of these changes what users link.
        self.settings.rm_safe("compiler.cppstd")
        self.settings.rm_safe("compiler.libcxx")

    def requirements(self):
        if self.options.with_io:
            self.requires("jansson/[>=2.13 <3]")

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        for part in ("CLI", "EXAMPLES", "TESTS", "SHARED"):
            toolchain.cache_variables["QK_BUILD_" + part] = False
        toolchain.cache_variables["QK_BUILD_IO"] = bool(self.options.with_io)
        toolchain.cache_variables["QK_CUDA"] = "ON" if self.options.with_cuda else "OFF"
        if self.options.with_cuda:
            toolchain.cache_variables["QK_CUDA_ARCHITECTURES"] = "all"
        toolchain.generate()
        CMakeDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))

    def package_info(self):
        self.cpp_info.set_property("cmake_file_name", "qk")
        core = self.cpp_info.components["qk"]
        core.set_property("cmake_target_name", "qk::qk")
        core.set_property("pkg_config_name", "qk")
        core.libs = ["qk"]
        core.system_libs = ["pthread", "m"]
        if self.options.with_cuda:
            core.system_libs += ["cudart_static", "dl", "rt"]
        if self.options.with_io:
            io = self.cpp_info.components["io"]
            io.set_property("cmake_target_name", "qk::io")
            io.set_property("pkg_config_name", "qk_io")
            io.libs = ["qk_io"]
            io.requires = ["qk", "jansson::jansson"]
