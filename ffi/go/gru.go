package qk

/*
#include <qk.h>

static qk_status go_gru_save(const qk_gru *gru, char *buffer, size_t capacity, size_t *bytes) {
    return qk_gru_save(gru, buffer, capacity, bytes);
}
static qk_status go_gru_load(qk_context *context, const char *data, size_t bytes, qk_gru **out) {
    return qk_gru_load(context, data, bytes, out);
}
*/
import "C"

import (
	"math"
	"runtime"
	"unsafe"
)

// More of the header's codes.
type (
	GruPreset      int32
	GruCalibration int32
	GateOrder      int32
	GruTensor      int32 // the quantized tensors inside the cell
)

const (
	DefaultPreset GruPreset = 0 // W8H16; qk.h says which to take and why
	W8A8          GruPreset = C.QK_GRU_W8A8 + 1
	W8H16         GruPreset = C.QK_GRU_W8H16 + 1
	W8A16         GruPreset = C.QK_GRU_W8A16 + 1
	W16A16        GruPreset = C.QK_GRU_W16A16 + 1

	CalibrateMinMax GruCalibration = C.QK_GRU_CALIBRATE_MIN_MAX
	CalibrateMoving GruCalibration = C.QK_GRU_CALIBRATE_MOVING
	CalibrateMSE    GruCalibration = C.QK_GRU_CALIBRATE_MSE

	OrderRZN GateOrder = C.QK_GRU_ORDER_RZN // PyTorch's
	OrderZRN GateOrder = C.QK_GRU_ORDER_ZRN

	UniformTables  = uint32(C.QK_GRU_UNIFORM_TABLES)
	BiasCorrection = uint32(C.QK_GRU_BIAS_CORRECTION)
	Headroom       = uint32(C.QK_GRU_HEADROOM)
	HView8         = uint32(C.QK_GRU_H_VIEW_8)

	GruX         GruTensor = C.QK_GRU_X
	GruH         GruTensor = C.QK_GRU_H
	GruW         GruTensor = C.QK_GRU_W
	GruR         GruTensor = C.QK_GRU_R
	GruBW        GruTensor = C.QK_GRU_BW
	GruBR        GruTensor = C.QK_GRU_BR
	GruIH        GruTensor = C.QK_GRU_IH
	GruHH        GruTensor = C.QK_GRU_HH
	GruUpdateIn  GruTensor = C.QK_GRU_UPDATE_IN
	GruUpdateOut GruTensor = C.QK_GRU_UPDATE_OUT
	GruResetIn   GruTensor = C.QK_GRU_RESET_IN
	GruResetOut  GruTensor = C.QK_GRU_RESET_OUT
	GruNewIn     GruTensor = C.QK_GRU_NEW_IN
	GruNewOut    GruTensor = C.QK_GRU_NEW_OUT
	gruTensors             = C.QK_GRU_TENSOR_COUNT
)

// GruConfig is sizes and choices for a GRU to be quantized.
type GruConfig struct {
	InputSize, HiddenSize int
	Preset                GruPreset
	Calibration           GruCalibration
	GateOrder             GateOrder // of the arrays given
	Flags                 uint32    // UniformTables and its neighbours
}

// GruWeights are w_ih [3h,c], w_hh [3h,h], and b_ih and b_hh [3h] or nil.
type GruWeights struct{ WIH, WHH, BIH, BHH []float32 }

// GruQuant is how one tensor of the cell is quantized.
type GruQuant struct {
	Bits                    int
	IsUnsigned, IsSymmetric bool
	Granularity             int // weights and biases: 0 one scale a tensor, 1 a gate, 2 a channel
}

func (q GruQuant) raw() C.qk_gru_quant {
	return C.qk_gru_quant{clamp(q.Bits), flag(q.IsUnsigned), flag(q.IsSymmetric),
		clamp(q.Granularity)}
}

func flag(value bool) C.int32_t {
	if value {
		return 1
	}
	return 0
}

// Gru is a GRU layer. Until Freeze it is float and used by one goroutine at a time; then it is
// integers, read-only, and shared by any number of them.
type Gru struct {
	handle         *C.qk_gru
	inputs, hidden int64
}

func adoptGru(handle *C.qk_gru, inputs, hidden int64) *Gru {
	g := &Gru{handle, inputs, hidden}
	runtime.SetFinalizer(g, (*Gru).Close)
	return g
}

// code is the header's; the zero value is what QK_GRU_CONFIG_INIT has.
func (p GruPreset) code() C.qk_gru_preset {
	if p == DefaultPreset {
		p = W8H16
	}
	return C.qk_gru_preset(p - 1)
}

// floats is nil for no values, as the optional arguments of C are.
func floats(values []float32) *C.float {
	if len(values) == 0 {
		return nil
	}
	return (*C.float)(unsafe.Pointer(&values[0]))
}

// NewGru copies the weights.
func NewGru(c *Context, config GruConfig, weights GruWeights) (*Gru, error) {
	raw := C.qk_gru_config{
		struct_size: C.uint32_t(unsafe.Sizeof(C.qk_gru_config{})),
		flags:       C.uint32_t(config.Flags),
		input_size:  clamp(config.InputSize),
		hidden_size: clamp(config.HiddenSize),
		gate_order:  C.int32_t(config.GateOrder),
		preset:      config.Preset.code(),
		calibration: C.qk_gru_calibration(config.Calibration),
	}
	// libqk refuses what is larger; these products fit into 64 bits.
	if config.InputSize < 1 || config.HiddenSize < 1 || config.InputSize > 1<<20 ||
		config.HiddenSize > 1<<20 {
		return nil, NewError(StatusShape, "config: InputSize and HiddenSize must be 1 to 65535")
	}
	input, hidden := int64(config.InputSize), int64(config.HiddenSize)
	for _, array := range []struct {
		name       string
		values     []float32
		needed     int64
		isOptional bool
	}{
		{"WIH", weights.WIH, 3 * hidden * input, false},
		{"WHH", weights.WHH, 3 * hidden * hidden, false},
		{"BIH", weights.BIH, 3 * hidden, true},
		{"BHH", weights.BHH, 3 * hidden, true},
	} {
		if array.isOptional && array.values == nil {
			continue
		}
		if int64(len(array.values)) != array.needed {
			return nil, wrongLength(array.name, len(array.values), array.needed)
		}
	}
	var handle *C.qk_gru
	err := c.check(C.qk_gru_create(c.handle, &raw, floats(weights.WIH), floats(weights.WHH),
		floats(weights.BIH), floats(weights.BHH), &handle))
	runtime.KeepAlive(c)
	if err != nil {
		return nil, err
	}
	return adoptGru(handle, input, hidden), nil
}

// Close gives the GRU back; its states stay valid.
func (g *Gru) Close() error {
	C.qk_gru_destroy(g.handle)
	g.handle = nil
	runtime.SetFinalizer(g, nil)
	return nil
}

// Handle is the qk_gru, for packages that call C themselves; keep g alive meanwhile.
func (g *Gru) Handle() unsafe.Pointer { return unsafe.Pointer(g.handle) }

// SetQuant overrides the preset for one tensor; before Freeze.
func (g *Gru) SetQuant(which GruTensor, quant GruQuant) error {
	raw := quant.raw()
	err := plain(C.qk_gru_set_quant(g.handle, C.qk_gru_tensor(which), &raw))
	runtime.KeepAlive(g)
	return err
}

// Calibrate runs x [t,b,c] through the float GRU and widens the ranges seen; h0 is [b,h] or nil.
func (g *Gru) Calibrate(c *Context, x *Tensor, h0 []float32) error {
	if err := g.checkStart(x, h0); err != nil {
		return err
	}
	err := c.check(C.qk_gru_calibrate(c.handle, g.handle, x.raw(), floats(h0)))
	g.keep(c, x)
	return err
}

// RunFloat is the float GRU itself: x [t,b,c] to y [t,b,h]; before Freeze.
func (g *Gru) RunFloat(c *Context, x *Tensor, h0 []float32, y *Tensor) error {
	if err := g.checkStart(x, h0); err != nil {
		return err
	}
	err := c.check(C.qk_gru_run_float(c.handle, g.handle, x.raw(), floats(h0), y.raw()))
	g.keep(c, x)
	runtime.KeepAlive(y)
	return err
}

// Freeze picks the exponents, quantizes, drops the floats.
func (g *Gru) Freeze(c *Context) error {
	err := c.check(C.qk_gru_freeze(c.handle, g.handle))
	g.keep(c, nil)
	return err
}

func (g *Gru) keep(c *Context, x *Tensor) {
	keep3(c, x, nil)
	runtime.KeepAlive(g)
}

// checkStart wants a value of h0 for each sequence of x and unit.
func (g *Gru) checkStart(x *Tensor, h0 []float32) error {
	if h0 == nil {
		return nil
	}
	desc, err := x.Desc()
	if err != nil {
		return err
	}
	batch := int64(1)
	if len(desc.Shape) == 3 {
		batch = desc.Shape[1]
	}
	if g.hidden == 0 || int64(len(h0))/g.hidden != batch || int64(len(h0))%g.hidden != 0 {
		return wrongLength("h0", len(h0), batch*g.hidden)
	}
	return nil
}

// LoadGru takes what Save gave; it trusts nothing.
func LoadGru(c *Context, image []byte) (*Gru, error) {
	pointer, bytes := address(image)
	var handle *C.qk_gru
	err := c.check(C.go_gru_load(c.handle, (*C.char)(pointer), bytes, &handle))
	runtime.KeepAlive(c)
	if err != nil {
		return nil, err
	}
	return adoptFrozen(handle)
}

func adoptFrozen(handle *C.qk_gru) (*Gru, error) {
	g := adoptGru(handle, 0, 0)
	raw, err := g.describe()
	if err != nil {
		g.Close()
		return nil, err
	}
	g.inputs, g.hidden = int64(raw.input_size), int64(raw.hidden_size)
	return g, nil
}

// Save gives the bytes that docs/gru.md lists; frozen only.
func (g *Gru) Save() ([]byte, error) {
	var bytes C.size_t
	if err := plain(C.go_gru_save(g.handle, nil, 0, &bytes)); err != nil {
		return nil, err
	}
	image := make([]byte, int(bytes))
	pointer, capacity := address(image)
	err := plain(C.go_gru_save(g.handle, (*C.char)(pointer), capacity, &bytes))
	runtime.KeepAlive(g)
	return image, err
}

// Scale gives shift and zero point: real = (code - zero) * 2^-shift. Weights and biases have
// channels 0 to 3h-1 in the order u, r, n; the others have channel 0. Frozen only.
func (g *Gru) Scale(which GruTensor, channel int) (shift, zeroPoint int, err error) {
	var s, z C.int32_t
	err = plain(C.qk_gru_scale(g.handle, C.qk_gru_tensor(which), clamp(channel), &s, &z))
	runtime.KeepAlive(g)
	return int(s), int(z), err
}

// GruState is the hidden state of one batch of sequences; one goroutine at a time.
type GruState struct {
	handle *C.qk_gru_state
	values int64 // batch * hidden
}

// NewState is at zero, for batch sequences; frozen only.
func (g *Gru) NewState(c *Context, batch int) (*GruState, error) {
	if err := within("batch", batch, 1, math.MaxInt32); err != nil {
		return nil, err
	}
	var handle *C.qk_gru_state
	err := c.check(C.qk_gru_state_create(c.handle, g.handle, clamp(batch), &handle))
	g.keep(c, nil)
	if err != nil {
		return nil, err
	}
	s := &GruState{handle, int64(batch) * g.hidden}
	runtime.SetFinalizer(s, (*GruState).Close)
	return s, nil
}

// Close gives the state back.
func (s *GruState) Close() error {
	C.qk_gru_state_destroy(s.handle)
	s.handle = nil
	runtime.SetFinalizer(s, nil)
	return nil
}

// Reset puts it to zero.
func (s *GruState) Reset(c *Context) error {
	err := c.check(C.qk_gru_state_reset(c.handle, s.handle))
	s.keep(c)
	return err
}

// Write sets h [b,h], rounded to the state's grid.
func (s *GruState) Write(c *Context, h []float32) error {
	if int64(len(h)) != s.values {
		return wrongLength("h", len(h), s.values)
	}
	err := c.check(C.qk_gru_state_write(c.handle, s.handle, floats(h)))
	s.keep(c)
	return err
}

// Read gives h [b,h].
func (s *GruState) Read(c *Context, h []float32) error {
	if int64(len(h)) != s.values {
		return wrongLength("h", len(h), s.values)
	}
	err := c.check(C.qk_gru_state_read(c.handle, s.handle, floats(h)))
	s.keep(c)
	return err
}

func (s *GruState) keep(c *Context) {
	runtime.KeepAlive(c)
	runtime.KeepAlive(s)
}

// Run advances the state by the t steps of x [t,b,c]; y is [t,b,h].
func (g *Gru) Run(c *Context, state *GruState, x, y *Tensor) error {
	err := c.check(C.qk_gru_run(c.handle, g.handle, state.handle, x.raw(), y.raw()))
	g.keep(c, x)
	keep3(c, y, nil)
	runtime.KeepAlive(state)
	return err
}

// RunGates also says what the gates were: [t,b,4h] holds u, r, n and R_n h + b.
func (g *Gru) RunGates(c *Context, state *GruState, x, y, gates *Tensor) error {
	err := c.check(C.qk_gru_run_gates(c.handle, g.handle, state.handle, x.raw(), y.raw(),
		gates.raw()))
	g.keep(c, x)
	keep3(c, y, gates)
	runtime.KeepAlive(state)
	return err
}

// Workspace is the workspace bytes that Run needs for up to tMax steps.
func (g *Gru) Workspace(c *Context, batch int, tMax int64) (int, error) {
	if err := within("batch", batch, 1, math.MaxInt32); err != nil {
		return 0, err
	}
	var bytes C.size_t
	err := c.check(C.qk_gru_workspace(c.handle, g.handle, clamp(batch), C.int64_t(tMax), &bytes))
	g.keep(c, nil)
	return int(bytes), err
}
