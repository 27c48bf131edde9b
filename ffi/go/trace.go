package qk

// #include <qk.h>
import "C"

import (
	"runtime/cgo"
	"unsafe"
)

// Trace is a kernel that has run, or on CUDA is queued.
type Trace struct {
	Operation string  // "multiply", "quantize", "dequantize", "repack", "gru_run", ...
	Kernel    string  // its name, which may change between versions
	Shape     []int64 // multiply: m, n, k; gru_run: t, b, c, h; else rows, columns
	Seconds   float64 // of the call on the host
	Status    Status  // 0, or that of the call's error
}

//export qkGoTrace
func qkGoTrace(user C.uintptr_t, call *C.qk_trace) {
	trace := Trace{Operation: C.GoString(call.operation), Kernel: C.GoString(call.kernel),
		Seconds: float64(call.seconds), Status: Status(call.status)}
	count := 2
	switch trace.Operation {
	case "multiply":
		count = 3
	case "gru_run":
		count = 4
	}
	shape := (*[4]int64)(unsafe.Pointer(&call.shape))
	trace.Shape = append(trace.Shape, shape[:count]...)
	cgo.Handle(user).Value().(func(Trace))(trace)
}

// forgetTrace lets go of a trace that C no longer calls.
func (c *Context) forgetTrace() {
	if c.trace != 0 {
		c.trace.Delete()
		c.trace = 0
	}
}
