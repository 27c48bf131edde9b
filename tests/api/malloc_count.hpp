// Counts every allocation of the process, on every thread.
#pragma once
#include <cstdint>

namespace api {

class MallocCount {
  public:
    MallocCount() : start_(now()) {}
    int64_t since() const { return now() - start_; }

  private:
    static int64_t now();
    int64_t start_;
};

}  // namespace api
