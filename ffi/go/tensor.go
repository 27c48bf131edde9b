package qk

/*
#include <stdlib.h>
#include <qk.h>

// cgo looks through all of the object that a void pointer may point into; a char cannot hold any.
static qk_status go_upload(qk_context *context, qk_tensor *tensor, qk_plane plane,
                           const char *host, size_t bytes) {
    return qk_tensor_upload(context, tensor, plane, host, bytes);
}
static qk_status go_download(qk_context *context, const qk_tensor *tensor, qk_plane plane,
                             char *host, size_t bytes) {
    return qk_tensor_download(context, tensor, plane, host, bytes);
}
*/
import "C"

import (
	"fmt"
	"math"
	"runtime"
	"unsafe"
)

// Desc is what a tensor is. A weight's shape is {n, k} in every layout. The zero values of the
// other fields mean dense, in row-major order.
type Desc struct {
	Format         Format
	ScaleFormat    Format // F32, F16, BF16; LUT8 nests the scales
	Layout         Layout
	GroupSize      int // codes a scale: 16 to 4096, LUT8 any from 1; or GroupRow
	Grouping       Grouping
	ScaleGroupSize int // nested: scales a second scale; 0 means 256
	Flags          uint32
	Shape          []int64
	RowStride      int64 // dense: elements from a row to the next; 0: nothing is between them
}

func (d *Desc) raw() C.qk_tensor_desc {
	raw := C.qk_tensor_desc{
		struct_size:      C.uint32_t(unsafe.Sizeof(C.qk_tensor_desc{})),
		format:           C.qk_format(d.Format),
		scale_format:     C.qk_format(d.ScaleFormat),
		layout:           C.qk_layout(d.Layout),
		group_size:       clamp(d.GroupSize),
		grouping:         C.qk_grouping(d.Grouping),
		scale_group_size: clamp(d.ScaleGroupSize),
		rank:             clamp(len(d.Shape)),
		flags:            C.uint32_t(d.Flags),
		row_stride:       C.int64_t(d.RowStride),
	}
	for i, size := range d.Shape {
		if i < MaxRank { // a larger rank is refused, whatever the sizes
			raw.shape[i] = C.int64_t(size)
		}
	}
	return raw
}

// clamp keeps a number that C's 32 bits cannot hold out of libqk's ranges.
func clamp(value int) C.int32_t {
	if value > math.MaxInt32 {
		value = math.MaxInt32
	}
	if value < math.MinInt32 {
		value = math.MinInt32
	}
	return C.int32_t(value)
}

func newDesc(raw *C.qk_tensor_desc) Desc {
	desc := Desc{
		Format:         Format(raw.format),
		ScaleFormat:    Format(raw.scale_format),
		Layout:         Layout(raw.layout),
		GroupSize:      int(raw.group_size),
		Grouping:       Grouping(raw.grouping),
		ScaleGroupSize: int(raw.scale_group_size),
		Flags:          uint32(raw.flags),
		RowStride:      int64(raw.row_stride),
	}
	for i := 0; i < int(raw.rank); i++ {
		desc.Shape = append(desc.Shape, int64(raw.shape[i]))
	}
	return desc
}

// WithRaw calls use with the description as a qk_tensor_desc, for packages that call C themselves.
func (d Desc) WithRaw(use func(raw unsafe.Pointer)) {
	raw := d.raw()
	use(unsafe.Pointer(&raw))
}

// DescFromRaw reads a qk_tensor_desc.
func DescFromRaw(raw unsafe.Pointer) Desc { return newDesc((*C.qk_tensor_desc)(raw)) }

// PlaneBytes is the size of one plane; 0 for a plane that the format does not have.
func (d Desc) PlaneBytes(plane Plane) (int, error) {
	raw := d.raw()
	var bytes C.size_t
	err := plain(C.qk_tensor_plane_bytes(&raw, C.qk_plane(plane), &bytes))
	return int(bytes), err
}

// Element is a number that any bits are valid for. F16 and BF16 are handled as uint16.
type Element interface {
	~float32 | ~int8 | ~uint8 | ~int16 | ~uint16 | ~int32 | ~uint32
}

// Memory is memory of C's that tensors may use and Go may read and write.
type Memory struct {
	pointer unsafe.Pointer
	bytes   int
}

// NewMemory is this many bytes of zeros.
func NewMemory(bytes int) (*Memory, error) {
	if bytes < 0 {
		return nil, NewError(StatusArgument, fmt.Sprintf("bytes: is %d", bytes))
	}
	m := &Memory{C.calloc(C.size_t(bytes)+1, 1), bytes} // + 1: never the NULL of no bytes
	if m.pointer == nil {
		return nil, NewError(StatusMemory, fmt.Sprintf("memory: none for %d bytes", bytes))
	}
	runtime.SetFinalizer(m, func(m *Memory) { C.free(m.pointer) })
	return m, nil
}

// Handle is the memory's address, for packages that call C themselves; keep m alive meanwhile.
func (m *Memory) Handle() unsafe.Pointer { return m.pointer }

// View is the memory as a slice, valid while m is: keep m, not the slice alone.
func View[T Element](m *Memory) []T {
	var element T
	return unsafe.Slice((*T)(m.pointer), m.bytes/int(unsafe.Sizeof(element)))
}

// Tensor is shape, format, layout and storage on one device. It outlives its context if need be.
type Tensor struct {
	handle *C.qk_tensor
	keeps  any // what owns its planes
}

// NewTensor has uninitialised storage on the context's device.
func NewTensor(c *Context, desc Desc) (*Tensor, error) {
	raw := desc.raw()
	var handle *C.qk_tensor
	err := c.check(C.qk_tensor_create(c.handle, &raw, &handle))
	runtime.KeepAlive(c)
	if err != nil {
		return nil, err
	}
	return AdoptTensor(unsafe.Pointer(handle), nil), nil
}

// FromSlice is a tensor with values in its DATA plane.
func FromSlice[T Element](c *Context, desc Desc, values []T) (*Tensor, error) {
	t, err := NewTensor(c, desc)
	if err != nil {
		return nil, err
	}
	if err := Upload(c, t, PlaneData, values); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// WrapTensor makes a tensor over memory of C's: planes[i] is plane i, nil where there is none. For
// CPU contexts. The tensor keeps the memory.
func WrapTensor(c *Context, desc Desc, planes ...*Memory) (*Tensor, error) {
	if c.device != DeviceCPU {
		return nil, NewError(StatusDeviceMix, "planes: are the host's, the context's device is not")
	}
	raw := desc.raw()
	if len(planes) > planeCount {
		return nil, NewError(StatusArgument, fmt.Sprintf("planes: are %d", len(planes)))
	}
	var pointers [planeCount]unsafe.Pointer // of C's memory, so cgo lets C see them
	for i, plane := range planes {
		if plane == nil {
			continue
		}
		needed, err := desc.PlaneBytes(Plane(i))
		if err != nil {
			return nil, err
		}
		if plane.bytes != needed {
			return nil, NewError(StatusBufferSize,
				fmt.Sprintf("planes[%d]: has %d bytes, must have %d", i, plane.bytes, needed))
		}
		pointers[i] = plane.pointer
	}
	var handle *C.qk_tensor
	err := c.check(C.qk_tensor_wrap(c.handle, &raw, &pointers[0], C.int32_t(len(planes)), &handle))
	runtime.KeepAlive(c)
	if err != nil {
		return nil, err
	}
	return AdoptTensor(unsafe.Pointer(handle), append([]*Memory(nil), planes...)), nil
}

// AdoptTensor takes a qk_tensor made by a package that calls C itself, and what owns its planes.
func AdoptTensor(handle unsafe.Pointer, keeps any) *Tensor {
	t := &Tensor{(*C.qk_tensor)(handle), keeps}
	runtime.SetFinalizer(t, (*Tensor).Close)
	return t
}

// Close gives the tensor back; calls with it are refused.
func (t *Tensor) Close() error {
	C.qk_tensor_destroy(t.handle)
	t.handle, t.keeps = nil, nil
	runtime.SetFinalizer(t, nil)
	return nil
}

// Handle is the qk_tensor, for packages that call C themselves; keep t alive meanwhile.
func (t *Tensor) Handle() unsafe.Pointer { return unsafe.Pointer(t.raw()) }

func (t *Tensor) raw() *C.qk_tensor {
	if t == nil {
		return nil
	}
	return t.handle
}

// Desc is what the tensor is, its grouping resolved.
func (t *Tensor) Desc() (Desc, error) {
	raw := C.qk_tensor_desc{struct_size: C.uint32_t(unsafe.Sizeof(C.qk_tensor_desc{}))}
	err := plain(C.qk_tensor_describe(t.raw(), &raw))
	runtime.KeepAlive(t)
	if err != nil {
		return Desc{}, err
	}
	return newDesc(&raw), nil
}

// Upload fills a plane; host must have exactly its bytes.
func Upload[T Element](c *Context, t *Tensor, plane Plane, host []T) error {
	pointer, bytes := address(host)
	return c.upload(t, plane, pointer, bytes)
}

// Download copies a plane; host must have exactly its bytes.
func Download[T Element](c *Context, t *Tensor, plane Plane, host []T) error {
	pointer, bytes := address(host)
	return c.download(t, plane, pointer, bytes)
}

// address gives even an empty slice one, which C may not read from.
func address[T Element](host []T) (unsafe.Pointer, C.size_t) {
	var element T
	if len(host) == 0 {
		return unsafe.Pointer(&element), 0
	}
	return unsafe.Pointer(&host[0]), C.size_t(len(host)) * C.size_t(unsafe.Sizeof(element))
}

func (c *Context) upload(t *Tensor, plane Plane, host unsafe.Pointer, bytes C.size_t) error {
	err := c.check(C.go_upload(c.handle, t.raw(), C.qk_plane(plane), (*C.char)(host), bytes))
	runtime.KeepAlive(c)
	runtime.KeepAlive(t)
	return err
}

func (c *Context) download(t *Tensor, plane Plane, host unsafe.Pointer, bytes C.size_t) error {
	err := c.check(C.go_download(c.handle, t.raw(), C.qk_plane(plane), (*C.char)(host), bytes))
	runtime.KeepAlive(c)
	runtime.KeepAlive(t)
	return err
}
