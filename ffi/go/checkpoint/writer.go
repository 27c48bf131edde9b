package checkpoint

/*
#include <stdlib.h>
#include <qk_io.h>

static qk_status go_create(const char *path, const void *allocator, qk_writer **out,
                           qk_io_message *message) {
    return qk_writer_create(path, allocator, out, message);
}
static qk_status go_write(qk_writer *writer, const char *name, const char *data, size_t bytes,
                          qk_io_message *message) {
    return qk_writer_write(writer, name, data, bytes, message);
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

// Writer is one safetensors file being written: declare everything, write data, finish. One
// goroutine at a time. Closed unfinished, it leaves the file that was at the path as it was.
type Writer struct{ handle *C.qk_writer }

// NewWriter writes to a new file beside path, which takes path's place in Finish.
func NewWriter(path string) (*Writer, error) {
	w := &Writer{}
	err := withName("path", path, func(path *C.char) error {
		var message C.qk_io_message
		return explained(C.go_create(path, allocator, &w.handle, &message), &message)
	})
	if err != nil {
		return nil, err
	}
	runtime.SetFinalizer(w, (*Writer).Close)
	return w, nil
}

// Close gives the writer back, and deletes an unfinished file.
func (w *Writer) Close() error {
	C.qk_writer_destroy(w.handle)
	w.handle = nil
	runtime.SetFinalizer(w, nil)
	return nil
}

// Metadata adds a pair to __metadata__.
func (w *Writer) Metadata(key, value string) error {
	return withName("key", key, func(key *C.char) error {
		return withName("value", value, func(value *C.char) error {
			var message C.qk_io_message
			err := explained(C.qk_writer_metadata(w.handle, key, value, &message), &message)
			runtime.KeepAlive(w)
			return err
		})
	})
}

// Declare says what tensor will come.
func (w *Writer) Declare(name string, dtype Dtype, shape ...int64) error {
	return withName("name", name, func(name *C.char) error {
		var message C.qk_io_message
		sizes := append([]int64(nil), shape...)
		sizes = append(sizes, 0) // never empty
		err := explained(C.qk_writer_declare(w.handle, name, C.qk_dtype(dtype),
			C.int32_t(len(shape)), (*C.int64_t)(unsafe.Pointer(&sizes[0])), &message), &message)
		runtime.KeepAlive(w)
		return err
	})
}

// Write appends little-endian bytes to one tensor.
func (w *Writer) Write(name string, data []byte) error {
	return withName("name", name, func(name *C.char) error {
		var message C.qk_io_message
		var none C.char
		start := &none
		if len(data) > 0 {
			start = (*C.char)(unsafe.Pointer(&data[0]))
		}
		err := explained(C.go_write(w.handle, name, start, C.size_t(len(data)), &message), &message)
		runtime.KeepAlive(w)
		return err
	})
}

// DeclareLayer says what quantized layer will come, in the tensors of a dialect.
func (w *Writer) DeclareLayer(dialect Dialect, layer string, desc qk.Desc,
	denseFormat qk.Format) error {
	return withName("layer", layer, func(layer *C.char) (err error) {
		desc.WithRaw(func(raw unsafe.Pointer) {
			var message C.qk_io_message
			err = explained(C.qk_writer_declare_layer(w.handle, C.qk_dialect(dialect), layer,
				(*C.qk_tensor_desc)(raw), C.qk_format(denseFormat), &message), &message)
			runtime.KeepAlive(w)
		})
		return err
	})
}

// WriteLayer writes the layer's planes.
func (w *Writer) WriteLayer(context *qk.Context, layer string, tensor *qk.Tensor) error {
	return withName("layer", layer, func(layer *C.char) error {
		var message C.qk_io_message
		err := explained(C.qk_writer_write_layer(w.handle, (*C.qk_context)(context.Handle()), layer,
			(*C.qk_tensor)(tensor.Handle()), &message), &message)
		runtime.KeepAlive(w)
		runtime.KeepAlive(context)
		runtime.KeepAlive(tensor)
		return err
	})
}

// Finish puts the new file in path's place. After this only Close is left.
func (w *Writer) Finish() error {
	var message C.qk_io_message
	err := explained(C.qk_writer_finish(w.handle, &message), &message)
	runtime.KeepAlive(w)
	return err
}

// WriteConfig writes a config.json: that of from, or an empty one where it is nil, with the
// quantization_config that Python's loaders need. kept are the layers that stayed dense.
func WriteConfig(from *Checkpoint, path string, dialect Dialect, desc qk.Desc,
	denseFormat qk.Format, kept []string) error {
	for i, name := range kept {
		if strings.IndexByte(name, 0) >= 0 {
			return zeroByte(fmt.Sprintf("kept[%d]", i))
		}
	}
	// An array of pointers in C's memory, as cgo asks.
	size := C.size_t(unsafe.Sizeof((*C.char)(nil)))
	array := (**C.char)(C.calloc(C.size_t(len(kept)+1), size))
	if array == nil {
		return qk.NewError(qk.StatusMemory, "")
	}
	names := unsafe.Slice(array, len(kept))
	defer func() {
		for _, name := range names {
			C.free(unsafe.Pointer(name))
		}
		C.free(unsafe.Pointer(array))
	}()
	for i, name := range kept {
		names[i] = C.CString(name)
	}
	var handle *C.qk_checkpoint
	if from != nil {
		handle = from.handle
	}
	return withName("path", path, func(path *C.char) (err error) {
		desc.WithRaw(func(raw unsafe.Pointer) {
			var message C.qk_io_message
			err = explained(C.qk_checkpoint_write_config(handle, path, C.qk_dialect(dialect),
				(*C.qk_tensor_desc)(raw), C.qk_format(denseFormat), array, C.int64_t(len(kept)),
				&message), &message)
		})
		runtime.KeepAlive(from)
		return err
	})
}
