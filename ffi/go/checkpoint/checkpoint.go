// Package checkpoint is qk_io.h: checkpoint files in, tensors out, and back. Programs that do not
// import it link no JSON parser.
package checkpoint

/*
#cgo pkg-config: --static qk_io
#include <stdlib.h>
#include <qk_io.h>

static qk_status go_open(const char *path, uint32_t flags, const void *allocator,
                         qk_checkpoint **out, qk_io_message *message) {
    qk_checkpoint_options options = QK_CHECKPOINT_OPTIONS_INIT;
    options.flags = flags;
    options.allocator = allocator;
    return qk_checkpoint_open(path, &options, out, message);
}
static qk_status go_open_memory(const char *bytes, size_t size, const char *config,
                                size_t config_bytes, qk_checkpoint **out, qk_io_message *message) {
    return qk_checkpoint_open_memory(bytes, size, config_bytes ? config : NULL, config_bytes, NULL,
                                     out, message);
}
*/
import "C"

import (
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"qk"
)

// Dtype is an element type of safetensors, Dialect whose way of storing a layer.
type (
	Dtype   int32
	Dialect int32
)

const (
	Bool Dtype = C.QK_DTYPE_BOOL
	U8   Dtype = C.QK_DTYPE_U8
	I8   Dtype = C.QK_DTYPE_I8
	I16  Dtype = C.QK_DTYPE_I16
	U16  Dtype = C.QK_DTYPE_U16
	F16  Dtype = C.QK_DTYPE_F16
	BF16 Dtype = C.QK_DTYPE_BF16
	I32  Dtype = C.QK_DTYPE_I32
	U32  Dtype = C.QK_DTYPE_U32
	F32  Dtype = C.QK_DTYPE_F32
	F64  Dtype = C.QK_DTYPE_F64
	I64  Dtype = C.QK_DTYPE_I64
	U64  Dtype = C.QK_DTYPE_U64
	GGUF Dtype = C.QK_DTYPE_GGUF // and above: blocks, by the type's number in ggml

	Unknown           Dialect = C.QK_DIALECT_UNKNOWN
	Dense             Dialect = C.QK_DIALECT_DENSE
	AWQGemm           Dialect = C.QK_DIALECT_AWQ_GEMM
	AWQGemv           Dialect = C.QK_DIALECT_AWQ_GEMV
	GPTQV1            Dialect = C.QK_DIALECT_GPTQ_V1
	GPTQV2            Dialect = C.QK_DIALECT_GPTQ_V2
	CompressedTensors Dialect = C.QK_DIALECT_COMPRESSED_TENSORS
	BitsAndBytes      Dialect = C.QK_DIALECT_BITSANDBYTES
	GGUFBlocks        Dialect = C.QK_DIALECT_GGUF
	FP8               Dialect = C.QK_DIALECT_FP8
	ModelOpt          Dialect = C.QK_DIALECT_MODELOPT
	GPTOSS            Dialect = C.QK_DIALECT_GPT_OSS
	DeepSeek          Dialect = C.QK_DIALECT_DEEPSEEK
	TorchAO           Dialect = C.QK_DIALECT_TORCHAO
)

func (d Dtype) String() string   { return C.GoString(C.qk_dtype_name(C.qk_dtype(d))) }
func (d Dialect) String() string { return C.GoString(C.qk_dialect_name(C.qk_dialect(d))) }

// Format is the dense format of these values; 0 where there is none.
func (d Dtype) Format() qk.Format {
	switch d {
	case F32:
		return qk.FormatF32
	case F16:
		return qk.FormatF16
	case BF16:
		return qk.FormatBF16
	case I8:
		return qk.FormatI8
	case I16:
		return qk.FormatI16
	}
	return 0
}

// explained makes an error of a status and its message; on success the message may be a note.
func explained(status C.qk_status, message *C.qk_io_message) error {
	if status == C.QK_OK {
		return nil
	}
	return qk.NewError(qk.Status(status), C.GoString(&message.text[0]))
}

func zeroByte(what string) error {
	return qk.NewError(qk.StatusArgument, what+": has a zero byte, which no name may have")
}

// withName calls use with C's copy of a name, which ends at its first zero byte.
func withName(what, name string, use func(name *C.char) error) error {
	if strings.IndexByte(name, 0) >= 0 {
		return zeroByte(what)
	}
	copied := C.CString(name)
	defer C.free(unsafe.Pointer(copied))
	return use(copied)
}

// allocator is a qk_allocator of C's, for the tests; nil: the C library's.
var allocator unsafe.Pointer

// Checkpoint is one model: its files, tensors and layers. It never changes, so any number of
// goroutines may read it.
type Checkpoint struct {
	handle *C.qk_checkpoint
	memory *qk.Memory
}

// Open takes a file, an index of shards or a folder, and maps the files: they must not be
// truncated before Close. Files are untrusted: whatever is in them, this ends in a checkpoint or
// an error.
func Open(path string) (*Checkpoint, error) { return open(path, 0) }

// Read is Open with the files copied into memory instead.
func Read(path string) (*Checkpoint, error) { return open(path, C.QK_CHECKPOINT_READ) }

func open(path string, flags C.uint32_t) (*Checkpoint, error) {
	var handle *C.qk_checkpoint
	err := withName("path", path, func(path *C.char) error {
		var message C.qk_io_message
		return explained(C.go_open(path, flags, allocator, &handle, &message), &message)
	})
	return adopt(handle, nil, err)
}

// FromBytes takes a safetensors file, which it copies, and the text of its config.json, or "".
func FromBytes(bytes []byte, config string) (*Checkpoint, error) {
	memory, err := qk.NewMemory(len(bytes))
	if err != nil {
		return nil, err
	}
	copy(qk.View[byte](memory), bytes)
	start := (*C.char)(memory.Handle()) // not NULL, even of an empty file, which is corrupt
	text := C.CString(config)
	defer C.free(unsafe.Pointer(text))
	var handle *C.qk_checkpoint
	var message C.qk_io_message
	err = explained(C.go_open_memory(start, C.size_t(len(bytes)), text, C.size_t(len(config)),
		&handle, &message), &message)
	return adopt(handle, memory, err)
}

func adopt(handle *C.qk_checkpoint, memory *qk.Memory, err error) (*Checkpoint, error) {
	if err != nil {
		return nil, err
	}
	c := &Checkpoint{handle, memory}
	runtime.SetFinalizer(c, (*Checkpoint).Close)
	return c, nil
}

// Close gives the checkpoint back; what was loaded in place must be closed before.
func (c *Checkpoint) Close() error {
	C.qk_checkpoint_destroy(c.handle)
	c.handle, c.memory = nil, nil
	runtime.SetFinalizer(c, nil)
	return nil
}

// Tensor is one entry of a file. Data is a copy.
type Tensor struct {
	Name      string
	Dtype     Dtype
	DtypeName string
	Shape     []int64
	Data      []byte
	File      string
}

func newTensor(raw *C.qk_file_tensor) Tensor {
	t := Tensor{Name: C.GoString(raw.name), Dtype: Dtype(raw.dtype),
		DtypeName: C.GoString(raw.dtype_name), File: C.GoString(raw.file),
		Shape: make([]int64, int(raw.rank)), Data: make([]byte, int(raw.bytes))}
	if raw.rank > 0 {
		copy(t.Shape, unsafe.Slice((*int64)(unsafe.Pointer(raw.shape)), int(raw.rank)))
	}
	if raw.bytes > 0 {
		copy(t.Data, unsafe.Slice((*byte)(raw.data), int(raw.bytes)))
	}
	return t
}

// Names are those of the files' entries, in order.
func (c *Checkpoint) Names() []string {
	var names []string
	for i := C.int64_t(0); i < C.qk_checkpoint_tensor_count(c.handle); i++ {
		var raw C.qk_file_tensor
		if C.qk_checkpoint_tensor(c.handle, i, &raw) == C.QK_OK {
			names = append(names, C.GoString(raw.name))
		}
	}
	runtime.KeepAlive(c)
	return names
}

// Tensor finds an entry by name.
func (c *Checkpoint) Tensor(name string) (Tensor, error) {
	var tensor Tensor
	err := withName("name", name, func(cName *C.char) error {
		var raw C.qk_file_tensor
		if status := C.qk_checkpoint_find_tensor(c.handle, cName, &raw); status != C.QK_OK {
			return noSuch("tensor", name, status)
		}
		tensor = newTensor(&raw)
		return nil
	})
	runtime.KeepAlive(c)
	return tensor, err
}

// noSuch is for the calls that find by name, which have no message.
func noSuch(what, name string, status C.qk_status) error {
	return qk.NewError(qk.Status(status),
		fmt.Sprintf("%s: the checkpoint has no such %s", name, what))
}

// Metadata is the __metadata__ pairs of all files, in file order.
func (c *Checkpoint) Metadata() [][2]string {
	var pairs [][2]string
	for i := C.int64_t(0); i < C.qk_checkpoint_metadata_count(c.handle); i++ {
		var key, value *C.char
		if C.qk_checkpoint_metadata(c.handle, i, &key, &value) == C.QK_OK {
			pairs = append(pairs, [2]string{C.GoString(key), C.GoString(value)})
		}
	}
	runtime.KeepAlive(c)
	return pairs
}

// Layer is one linear layer. Err is nil where Load takes it, and says why not elsewhere; Desc is
// what it loads as.
type Layer struct {
	Name        string
	Dialect     Dialect
	Err         error
	Desc        qk.Desc
	HasBias     bool
	DenseFormat qk.Format // what the weights were before, or what scales are in
	Bytes       int64     // in the file, bias included
}

func newLayer(raw *C.qk_layer) Layer {
	layer := Layer{Name: C.GoString(raw.name), Dialect: Dialect(raw.dialect),
		HasBias: raw.has_bias != 0, DenseFormat: qk.Format(raw.dense_format),
		Bytes: int64(raw.bytes)}
	if raw.status == C.QK_OK {
		layer.Desc = qk.DescFromRaw(unsafe.Pointer(&raw.desc))
	} else {
		layer.Err = qk.NewError(qk.Status(raw.status), C.GoString(raw.reason))
	}
	return layer
}

// Layers are all of them, in order of names, loadable or not.
func (c *Checkpoint) Layers() []Layer {
	var layers []Layer
	for i := C.int64_t(0); i < C.qk_checkpoint_layer_count(c.handle); i++ {
		var raw C.qk_layer
		if C.qk_checkpoint_layer(c.handle, i, &raw, C.sizeof_qk_layer) == C.QK_OK {
			layers = append(layers, newLayer(&raw))
		}
	}
	runtime.KeepAlive(c)
	return layers
}

// Layer finds one by name.
func (c *Checkpoint) Layer(name string) (Layer, error) {
	var layer Layer
	err := withName("layer", name, func(cName *C.char) error {
		var raw C.qk_layer
		status := C.qk_checkpoint_find_layer(c.handle, cName, &raw, C.sizeof_qk_layer)
		if status != C.QK_OK {
			return noSuch("layer", name, status)
		}
		layer = newLayer(&raw)
		return nil
	})
	runtime.KeepAlive(c)
	return layer, err
}

// Load gives a layer's weight [n,k] and its bias [n], nil where it has none, copied to the
// context's device.
func (c *Checkpoint) Load(context *qk.Context, layer string) (w, bias *qk.Tensor, err error) {
	return c.load(context, layer, 0, nil)
}

// LoadInPlace is Load with planes that stay in the checkpoint, which the tensors keep: CPU
// contexts only, read-only.
func (c *Checkpoint) LoadInPlace(context *qk.Context, layer string) (
	w, bias *qk.Tensor, err error) {
	return c.load(context, layer, C.QK_LOAD_IN_PLACE, c)
}

func (c *Checkpoint) load(context *qk.Context, layer string, flags C.uint32_t, keeps any) (
	w, bias *qk.Tensor, err error) {
	var weight, offset *C.qk_tensor
	err = withName("layer", layer, func(layer *C.char) error {
		var message C.qk_io_message
		return explained(C.qk_checkpoint_load(c.handle, (*C.qk_context)(context.Handle()), layer,
			flags, &weight, &offset, &message), &message)
	})
	runtime.KeepAlive(c)
	runtime.KeepAlive(context)
	return adoptLayer(weight, offset, keeps, err)
}

func adoptLayer(weight, offset *C.qk_tensor, keeps any, err error) (w, bias *qk.Tensor, _ error) {
	if err != nil {
		return nil, nil, err
	}
	if offset != nil {
		bias = qk.AdoptTensor(unsafe.Pointer(offset), keeps)
	}
	return qk.AdoptTensor(unsafe.Pointer(weight), keeps), bias, nil
}

// VerifyLayer reads every scale, offset and bias; the note that libqk may leave, or "".
func (c *Checkpoint) VerifyLayer(layer string) (note string, err error) {
	err = withName("layer", layer, func(layer *C.char) error {
		var message C.qk_io_message
		status := C.qk_checkpoint_verify_layer(c.handle, layer, &message)
		note = C.GoString(&message.text[0])
		return explained(status, &message)
	})
	runtime.KeepAlive(c)
	if err != nil {
		return "", err
	}
	return note, nil
}
