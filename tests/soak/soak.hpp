// A random walk over qk.h: each case is drawn from one number and checked against the reference,
// the derived bounds and the promises of the header. What a case is and what it stands on.
#pragma once
#include <memory>
#include <stdexcept>
#include <string>

#include "harness/random.hpp"
#include "kernel/rig.hpp"

namespace soak {

using harness::Data;
using harness::Random;
using reference::Format;
using reference::Layout;
using reference::Spec;
using sweep::Bytes;

enum class Op { dequantize, repack, quantize, linear, queue, refuse, count };
enum class Inputs {
    real,
    integer,  // sums are exact whatever their order
    sparse,   // a few columns: nothing hides a wrong weight
    wild,     // NaN, infinities, any magnitude
    count
};
enum class Room { none, best, little };  // of the workspace

struct Case {
    uint64_t number = 0;
    Op op = Op::linear;
    bool dense_weight = false;
    Format dense_format = Format::f32;
    Spec spec;
    Data data = Data::real;
    Inputs inputs = Inputs::real;
    Format x_format = Format::f32, bias_format = Format::f32;
    bool bias = false, packed = false;
    int64_t m = 1;
    uint32_t flags = 0;
    int32_t threads = 1;
    bool executor = false;
    Room room = Room::none;
    Layout second = Layout::row;  // repack: to
    float scale_up = 1;           // of the weight's scales
};

Case draw(uint64_t number, qk_device device);
const char *name(Op op);
std::string describe(const Case &c);

struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};
struct Fault : Failure {  // of the device: nothing works after it
    using Failure::Failure;
};
void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

// One backend, its memory, and tasks on threads of the caller.
struct World {
    World(const qk::Backend &b, uint32_t instruction_sets) : home(b) {
        home.device = qk::device_at(b, 0, instruction_sets);
    }
    sweep::Home home;
    bool cuda() const { return home.backend.device == QK_DEVICE_CUDA; }
};

struct ContextOptions {
    int32_t threads = 1;
    bool executor = false;
    uint32_t flags = 0;
    size_t workspace = 0;
};

// A context over host memory that is poisoned and has borders, and a workspace that held NaNs.
class Context {
  public:
    Context(const World &world, const ContextOptions &options);
    ~Context();
    Context(const Context &) = delete;
    Context &operator=(const Context &) = delete;

    qk_context *get() const { return context_; }
    // Fails the case where `status` is not QK_OK.
    void expect_ok(qk_status status, const char *call) const;
    void synchronize() const;

  private:
    qk_context *context_ = nullptr;
};

// A tensor over numbered slots of the world's memory, or of the library's own storage.
class Tensor {
  public:
    // `planes`: contents, or poison where null. `turn` picks their addresses.
    Tensor(World *world, const Context &context, const qk_tensor_desc &desc,
           const reference::Planes *planes, int slot, uint64_t turn);
    // Packed: created.
    Tensor(const World &world, const Context &context, const qk_tensor_desc &desc);
    ~Tensor() { qk_tensor_destroy(handle_); }
    Tensor(const Tensor &) = delete;
    Tensor &operator=(const Tensor &) = delete;

    qk_tensor *get() const { return handle_; }
    Bytes bytes(int plane) const;
    const qk_tensor_desc desc;

  private:
    World *world_ = nullptr;
    int slot_ = 0;
    std::array<bool, QK_PLANE_COUNT> has_ = {};
    qk_tensor *handle_ = nullptr;
};

constexpr int kW = 0, kTo = 10, kX = 20, kY = 30, kBias = 40, kRows = 50, kRowsOut = 60;  // slots

// Random contents of a weight: what it means (empty where the weight is large) and its planes.
struct Contents {
    reference::Weight meaning;
    reference::Planes planes;
    bool small = true;
};
Contents contents(const Case &c, Random *random);
qk_tensor_desc describe_weight(const Case &c);
qk_tensor_desc describe_rows(Format format, int64_t rows, int64_t columns, Random *random);

// Bits of the weight as `format`: the reference's, or the generic kernel's where it is large.
std::vector<uint32_t> dequantized(const Case &c, const Contents &w, Format format);
qk::Weight host_view(const Case &c, const Contents &w);
void same_planes(const Case &c, const reference::Planes &expected, const Tensor &got,
                 const char *what);
void intact(World *world, const char *what);
uint64_t place(const World &world, Random *random);  // of a plane: aligned or not

void check_dequantize(World *world, const Case &c, Random *random);
void check_repack(World *world, const Case &c, Random *random);
void check_quantize(World *world, const Case &c, Random *random);
void check_linear(World *world, const Case &c, Random *random);
void check_queue(World *world, const Case &c, Random *random);
void check_refusals(World *world, const Case &c, Random *random);

}  // namespace soak
