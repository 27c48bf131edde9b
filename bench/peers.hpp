// What is measured beside qk where it is installed; nothing here is linked.
#pragma once
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

#include <string>

namespace bench {

// OpenBLAS's sgemm (Debian: libopenblas0-pthread). It picks the kernel of an AVX2 machine on
// processors that it does not know, so the AVX-512 one is asked for, whatever the environment says.
class Sgemm {
  public:
    explicit Sgemm(int threads) {
        setenv("OPENBLAS_CORETYPE", "SKYLAKEX", 1);
        void *const library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) return;
        const auto set_threads =
            reinterpret_cast<void (*)(int)>(dlsym(library, "openblas_set_num_threads"));
        const auto config =
            reinterpret_cast<const char *(*)()>(dlsym(library, "openblas_get_config"));
        run_ = reinterpret_cast<Run>(dlsym(library, "cblas_sgemm"));
        if (set_threads != nullptr) set_threads(threads);
        if (config != nullptr) name_ = config();
    }
    bool found() const { return run_ != nullptr; }
    const std::string &name() const { return name_; }

    // y [m, n] = x [m, k] . transpose(w [n, k])
    void multiply(int m, int n, int k, const float *x, const float *w, float *y) const {
        constexpr int row_major = 101, plain = 111, transposed = 112;
        run_(row_major, plain, transposed, m, n, k, 1.0f, x, k, w, k, 0.0f, y, n);
    }

  private:
    using Run = void (*)(int, int, int, int, int, int, float, const float *, int, const float *,
                         int, float, float *, int);
    Run run_ = nullptr;
    std::string name_;
};

}  // namespace bench
