// A peer in the style of the int8 GRUs of speech codecs and denoisers (the published idea: int8
// weights with a float scale a row, activations in -1..1 quantized to 8 bits at every step, integer
// products, gates and state in float). Written for this comparison, with the same instructions at
// hand as qk's own kernel and the same order of weights; it is no copy of another program.
#pragma once
#include <vector>

namespace bench {

class PeerGru {
  public:
    // Gates r, z, n; w and r [3h,h].
    // is_narrow: 256-bit vectors and byte products that saturate, as those programs ship; else VNNI
    // where the machine has it.
    PeerGru(int h, bool is_narrow, const float *w, const float *r, const float *bw,
            const float *br);
    void step(const float *x);
    const float *state() const { return state_.data(); }

  private:
    struct Part {  // [block of 16 rows][4 columns][row][column]
        std::vector<signed char> weights;
        std::vector<float> scale, offset;
    };
    static Part make(int h, const float *weights, const float *bias);
    void multiply(const Part &part, const float *input, float *to);

    int h_;
    bool is_narrow_;
    Part input_, recurrent_;
    std::vector<float> state_, from_x_, from_h_;
    std::vector<unsigned char> codes_;
};

}  // namespace bench
