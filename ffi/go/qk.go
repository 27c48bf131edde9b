// Package qk is libqk for Go: 4-bit weights and integer GRUs.
//
// The names and rules are those of qk.h; its comments say what each function does. What Go adds:
//
//   - A refused call is an *Error with its Status and libqk's one sentence.
//   - Every handle has a Close and, for those who forget it, a finalizer. Any order is fine.
//   - libqk may keep a plane's address, which cgo forbids for Go's memory, so tensors are in C's
//     memory: their own, or that of a Memory. Slices are copied to and from planes.
//   - Threads are as in the header: one goroutine at a time uses a Context; tensors that no
//     goroutine writes and frozen GRUs may be read through any number of contexts at once.
package qk

/*
#cgo pkg-config: --static qk
#include <qk.h>

extern void qkGoTrace(uintptr_t user, qk_trace *call); // trace.go
static void tell(void *user, const qk_trace *call) { qkGoTrace((uintptr_t)user, (qk_trace *)call); }

static qk_status go_context(qk_device device, int32_t index, int32_t threads, size_t workspace,
                            uint32_t flags, uint32_t instruction_sets, void *stream,
                            const void *allocator, uintptr_t trace, qk_context **out) {
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.device = device;
    options.device_index = index;
    options.thread_count = threads;
    options.workspace_bytes = workspace;
    options.flags = flags;
    options.instruction_sets = instruction_sets;
    options.stream = stream;
    options.allocator = allocator;
    options.trace = trace != 0 ? tell : NULL;
    options.trace_user = (void *)trace;
    return qk_context_create(&options, out);
}
*/
import "C"

import (
	"fmt"
	"math"
	"runtime"
	"runtime/cgo"
	"unsafe"
)

// Version is major*10000 + minor*100 + patch of the linked library.
func Version() uint32 { return uint32(C.qk_version()) }

// BuildInfo names backends, architectures and compiler, for bug reports.
func BuildInfo() string { return C.GoString(C.qk_build_info()) }

// DeviceCount is how many devices of this kind there are; 0 where the backend is not built in.
func DeviceCount(device Device) (int, error) {
	var count C.int32_t
	status := C.qk_device_count(C.qk_device(device), &count)
	return int(count), plain(status)
}

// DynamicTable is bitsandbytes' code of 256 values, for PlaneTable and PlaneScaleCode.
func DynamicTable() ([]float32, error) {
	table := make([]float32, 256)
	err := plain(C.qk_dynamic_table((*C.float)(unsafe.Pointer(&table[0]))))
	return table, err
}

// Error is a refused or failed call.
type Error struct {
	Status  Status
	Message string // libqk's sentence; the status in words where the call has none
}

func (e *Error) Error() string { return e.Message }

// Is makes errors.Is(err, qk.StatusShape) work.
func (e *Error) Is(target error) bool {
	status, ok := target.(Status)
	return ok && status == e.Status
}

// NewError is an Error with this sentence, or with the status in words where it is empty.
func NewError(status Status, message string) *Error {
	if message == "" {
		message = status.String()
	}
	return &Error{status, message}
}

// String is the status in words.
func (s Status) String() string { return C.GoString(C.qk_status_string(C.qk_status(s))) }

// Error makes a Status a target for errors.Is.
func (s Status) Error() string { return s.String() }

// Kind is whose fault a failure is: the hundred of the status, 1 to 9.
func (s Status) Kind() Kind { return Kind(s / 100) }

// plain is for the calls that have no context, and so no sentence.
func plain(status C.qk_status) error {
	if status == C.QK_OK {
		return nil
	}
	return NewError(Status(status), "")
}

func wrongLength(what string, found int, needed int64) error {
	return NewError(StatusBufferSize,
		fmt.Sprintf("%s: has %d elements, must have %d", what, found, needed))
}

// within refuses a number that C would cut or has no sentence for.
func within(what string, value, low, high int) error {
	if value >= low && value <= high {
		return nil
	}
	return NewError(StatusArgument,
		fmt.Sprintf("%s: is %d, accepted are %d to %d", what, value, low, high))
}

// maxThreads is the most that qk.h takes.
const maxThreads = 1024

// Options say how a context is made; the zero value is the CPU with a thread a core.
type Options struct {
	Device          Device // 0: the CPU
	DeviceIndex     int
	Threads         int // 0: one a core; 1: the caller's alone
	WorkspaceBytes  int
	Flags           uint32         // 0, or what Linear may do on the CPU: BF16Products, ...
	InstructionSets uint32         // CPU: ISAAVX2 | ... that may be used; 0: all there are
	Stream          unsafe.Pointer // a cudaStream_t that outlives the context; nil: the default

	// Trace is told each kernel that runs, in the call's goroutine. It must not use the context. A
	// panic of it reaches the caller of the call, which is abandoned: its outputs are undefined, the
	// context stays usable.
	Trace func(Trace)

	allocator unsafe.Pointer // a qk_allocator of C's, for the tests
}

// Context is one device, one stream and one workspace; one goroutine at a time.
type Context struct {
	handle *C.qk_context
	device Device
	trace  cgo.Handle // of Options.Trace; 0: none
}

// NewContext makes a context.
func NewContext(options Options) (*Context, error) {
	if options.Device == 0 {
		options.Device = DeviceCPU
	}
	for _, err := range []error{
		within("DeviceIndex", options.DeviceIndex, 0, math.MaxInt32),
		within("Threads", options.Threads, 0, maxThreads),
		within("WorkspaceBytes", options.WorkspaceBytes, 0, math.MaxInt),
	} {
		if err != nil {
			return nil, err
		}
	}
	c := &Context{device: options.Device}
	if options.Trace != nil {
		c.trace = cgo.NewHandle(options.Trace)
	}
	status := C.go_context(C.qk_device(options.Device), C.int32_t(options.DeviceIndex),
		C.int32_t(options.Threads), C.size_t(options.WorkspaceBytes),
		C.uint32_t(options.Flags), C.uint32_t(options.InstructionSets), options.Stream,
		options.allocator, C.uintptr_t(c.trace), &c.handle)
	if status != C.QK_OK {
		c.forgetTrace()
		return nil, plain(status)
	}
	runtime.SetFinalizer(c, (*Context).Close)
	return c, nil
}

// Close gives the context back. Its tensors and GRUs stay valid; calls on it are refused.
func (c *Context) Close() error {
	C.qk_context_destroy(c.handle)
	c.handle = nil
	c.forgetTrace()
	runtime.SetFinalizer(c, nil)
	return nil
}

// Handle is the qk_context, for packages that call C themselves; keep c alive meanwhile.
func (c *Context) Handle() unsafe.Pointer { return unsafe.Pointer(c.handle) }

// check makes an error of a call's status. The caller keeps c alive.
func (c *Context) check(status C.qk_status) error {
	if status == C.QK_OK {
		return nil
	}
	return NewError(Status(status), C.GoString(C.qk_context_error(c.handle)))
}

// ContextInfo is what a context really has.
type ContextInfo struct {
	Device          Device
	DeviceIndex     int
	Threads         int // that work, the caller's included: fewer than asked for if there were no more
	Flags           uint32
	InstructionSets uint32 // ISAGeneric | ... that kernels are chosen from
	WorkspaceBytes  int
}

// Info asks the context what it really has.
func (c *Context) Info() (ContextInfo, error) {
	var info C.qk_context_info
	info.struct_size = C.uint32_t(unsafe.Sizeof(info))
	err := c.check(C.qk_context_describe(c.handle, &info))
	runtime.KeepAlive(c)
	return ContextInfo{Device(info.device), int(info.device_index), int(info.thread_count),
		uint32(info.flags), uint32(info.instruction_sets), int(info.workspace_bytes)}, err
}

// Synchronize waits for queued device work and reports its faults.
func (c *Context) Synchronize() error {
	err := c.check(C.qk_context_synchronize(c.handle))
	runtime.KeepAlive(c)
	return err
}

// Quantize finds the codes nearest to dense, in the format of quantized.
func (c *Context) Quantize(dense, quantized *Tensor) error {
	err := c.check(C.qk_quantize(c.handle, dense.raw(), quantized.raw()))
	keep3(c, dense, quantized)
	return err
}

// Dequantize gives the values of quantized in the dense format of dense.
func (c *Context) Dequantize(quantized, dense *Tensor) error {
	err := c.check(C.qk_dequantize(c.handle, quantized.raw(), dense.raw()))
	keep3(c, quantized, dense)
	return err
}

// Repack writes the same values in another layout.
func (c *Context) Repack(from, to *Tensor) error {
	err := c.check(C.qk_repack(c.handle, from.raw(), to.raw()))
	keep3(c, from, to)
	return err
}

// Linear is y = x . transpose(w) + bias: x [m,k], w [n,k] in any format, bias [n] or nil, y [m,n].
func (c *Context) Linear(x, w, bias, y *Tensor) error {
	err := c.check(C.qk_linear(c.handle, x.raw(), w.raw(), bias.raw(), y.raw()))
	keep3(c, x, w)
	runtime.KeepAlive(bias)
	runtime.KeepAlive(y)
	return err
}

// LinearWorkspace is the workspace bytes that Linear needs for up to mMax rows of x.
func (c *Context) LinearWorkspace(w *Tensor, mMax int64) (int, error) {
	var bytes C.size_t
	err := c.check(C.qk_linear_workspace(c.handle, w.raw(), C.int64_t(mMax), &bytes))
	runtime.KeepAlive(c)
	runtime.KeepAlive(w)
	return int(bytes), err
}

// keep3 holds a call's operands until it is over: a finalizer may run as soon as nothing else
// will touch an object, which can be while C still reads it.
func keep3(c *Context, a, b *Tensor) {
	runtime.KeepAlive(c)
	runtime.KeepAlive(a)
	runtime.KeepAlive(b)
}
