#include "gru/calibrate/float_gru.hpp"

namespace qk::gru {

void fill_panels(const float *weights, int64_t rows, int64_t count, float *panels) {
    for (int64_t row = 0; row < rows; ++row) {
        float *const lane = panels + row / kFloatPanel * kFloatPanel * count + row % kFloatPanel;
        for (int64_t k = 0; k < count; ++k) lane[k * kFloatPanel] = weights[row * count + k];
    }
}

}  // namespace qk::gru
