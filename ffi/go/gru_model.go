package qk

/*
#include <stdlib.h>
#include <string.h>
#include <qk.h>

// A model's arrays, copied into one block of C's memory for the call: cgo forbids a struct of Go's
// with pointers to memory of Go's.
static void *go_place(char **at, const char *from, size_t bytes) {
    char *start = *at;
    if (bytes > 0) memcpy(start, from, bytes);
    *at += (bytes + 7) / 8 * 8;
    return start;
}
*/
import "C"

import (
	"runtime"
	"unsafe"
)

// GruTable is sigmoid or tanh as lines from input code to output code; see qk.h.
type GruTable struct {
	Kind                        int // 1: knots, 2: uniform
	Shift, WidthLog2, First     int
	Threshold, Slope, Intercept []int32 // Threshold: knots only
}

// GruModel is a frozen GRU's integers, gates in the order u (z), r, n; see qk.h. W and R are
// []int8 up to 8 bits, []int16 above, as the other one is nil.
type GruModel struct {
	Flags                            uint32
	InputSize, HiddenSize            int
	HViewShift                       int
	Quant                            [gruTensors]GruQuant
	Shift, ZeroPoint                 [gruTensors]int
	WShift, RShift, BWShift, BRShift []int8 // [3h]
	W8, R8                           []int8 // [3h,c], [3h,h]
	W16, R16                         []int16
	BW, BR                           []int32 // [3h]
	Update, Reset, Candidate         GruTable
}

func (g *Gru) describe() (*C.qk_gru_model, error) {
	raw := &C.qk_gru_model{struct_size: C.uint32_t(unsafe.Sizeof(C.qk_gru_model{}))}
	err := plain(C.qk_gru_describe(g.handle, raw))
	runtime.KeepAlive(g)
	return raw, err
}

// copied is count numbers of C's memory as a slice of Go's.
func copied[T Element](pointer unsafe.Pointer, count int) []T {
	if pointer == nil || count == 0 {
		return nil
	}
	return append([]T(nil), unsafe.Slice((*T)(pointer), count)...)
}

// Model is a copy of the integers; frozen only.
func (g *Gru) Model() (*GruModel, error) {
	raw, err := g.describe()
	if err != nil {
		return nil, err
	}
	c, h := int(raw.input_size), int(raw.hidden_size)
	m := &GruModel{Flags: uint32(raw.flags), InputSize: c, HiddenSize: h,
		HViewShift: int(raw.h_view_shift)}
	for i := range m.Quant {
		quant := raw.quant[i]
		m.Quant[i] = GruQuant{int(quant.bits), quant.is_unsigned != 0, quant.is_symmetric != 0,
			int(quant.granularity)}
		m.Shift[i], m.ZeroPoint[i] = int(raw.shift[i]), int(raw.zero_point[i])
	}
	m.WShift = copied[int8](unsafe.Pointer(raw.w_shift), 3*h)
	m.RShift = copied[int8](unsafe.Pointer(raw.r_shift), 3*h)
	m.BWShift = copied[int8](unsafe.Pointer(raw.bw_shift), 3*h)
	m.BRShift = copied[int8](unsafe.Pointer(raw.br_shift), 3*h)
	if m.Quant[GruW].Bits > 8 {
		m.W16 = copied[int16](raw.w, 3*h*c)
	} else {
		m.W8 = copied[int8](raw.w, 3*h*c)
	}
	if m.Quant[GruR].Bits > 8 {
		m.R16 = copied[int16](raw.r, 3*h*h)
	} else {
		m.R8 = copied[int8](raw.r, 3*h*h)
	}
	m.BW = copied[int32](unsafe.Pointer(raw.bw), 3*h)
	m.BR = copied[int32](unsafe.Pointer(raw.br), 3*h)
	m.Update, m.Reset, m.Candidate = table(&raw.update), table(&raw.reset), table(&raw.candidate)
	runtime.KeepAlive(g)
	return m, nil
}

func table(raw *C.qk_gru_table) GruTable {
	count := int(raw.count)
	t := GruTable{Kind: int(raw.kind), Shift: int(raw.shift), WidthLog2: int(raw.width_log2),
		First: int(raw.first)}
	if raw.kind == C.QK_GRU_TABLE_KNOTS {
		t.Threshold = copied[int32](unsafe.Pointer(raw.threshold), count)
	}
	t.Slope = copied[int32](unsafe.Pointer(raw.slope), count)
	t.Intercept = copied[int32](unsafe.Pointer(raw.intercept), count)
	return t
}

// block hands out pieces of C's memory.
type block struct{ at *C.char }

func put[T Element](b *block, values []T) unsafe.Pointer {
	pointer, bytes := address(values)
	return C.go_place(&b.at, (*C.char)(pointer), bytes)
}

func (m *GruModel) check() error {
	c, h := int64(m.InputSize), int64(m.HiddenSize)
	if c < 1 || h < 1 || c > 65535 || h > 65535 {
		return NewError(StatusShape, "model: InputSize and HiddenSize must be 1 to 65535")
	}
	lengths := []struct {
		name   string
		found  int
		needed int64
	}{
		{"WShift", len(m.WShift), 3 * h}, {"RShift", len(m.RShift), 3 * h},
		{"BWShift", len(m.BWShift), 3 * h}, {"BRShift", len(m.BRShift), 3 * h},
		{"BW", len(m.BW), 3 * h}, {"BR", len(m.BR), 3 * h},
		{"W8", len(m.W8), narrow(m.Quant[GruW], 3*h*c)},
		{"W16", len(m.W16), 3*h*c - narrow(m.Quant[GruW], 3*h*c)},
		{"R8", len(m.R8), narrow(m.Quant[GruR], 3*h*h)},
		{"R16", len(m.R16), 3*h*h - narrow(m.Quant[GruR], 3*h*h)},
	}
	for _, t := range []*GruTable{&m.Update, &m.Reset, &m.Candidate} {
		count, knots := int64(len(t.Slope)), int64(0)
		if t.Kind == C.QK_GRU_TABLE_KNOTS {
			knots = count
		}
		lengths = append(lengths, []struct {
			name   string
			found  int
			needed int64
		}{{"Intercept", len(t.Intercept), count}, {"Threshold", len(t.Threshold), knots}}...)
	}
	for _, array := range lengths {
		if int64(array.found) != array.needed {
			return wrongLength(array.name, array.found, array.needed)
		}
	}
	return nil
}

// narrow is how many of the weights are int8.
func narrow(quant GruQuant, count int64) int64 {
	if quant.Bits > 8 {
		return 0
	}
	return count
}

// bytes is room for every array, each rounded up to 8 bytes.
func (m *GruModel) bytes() int {
	total := len(m.WShift) + len(m.RShift) + len(m.BWShift) + len(m.BRShift) + len(m.W8) + len(m.R8)
	total += 2*(len(m.W16)+len(m.R16)) + 4*(len(m.BW)+len(m.BR))
	for _, t := range []*GruTable{&m.Update, &m.Reset, &m.Candidate} {
		total += 4 * (len(t.Threshold) + len(t.Slope) + len(t.Intercept))
	}
	return total + 8*32
}

func (t *GruTable) place(b *block, raw *C.qk_gru_table) {
	raw.kind = C.qk_gru_table_kind(clamp(t.Kind))
	raw.count = clamp(len(t.Slope))
	raw.shift, raw.width_log2, raw.first = clamp(t.Shift), clamp(t.WidthLog2), clamp(t.First)
	if t.Kind == C.QK_GRU_TABLE_KNOTS {
		raw.threshold = (*C.int32_t)(put(b, t.Threshold))
	}
	raw.slope = (*C.int32_t)(put(b, t.Slope))
	raw.intercept = (*C.int32_t)(put(b, t.Intercept))
}

// NewGruFromModel takes integers made elsewhere; every claim is checked. Copies.
func NewGruFromModel(c *Context, m *GruModel) (*Gru, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	memory := (*C.char)(C.malloc(C.size_t(m.bytes())))
	if memory == nil {
		return nil, NewError(StatusMemory, "")
	}
	defer C.free(unsafe.Pointer(memory))
	b := &block{memory}
	raw := C.qk_gru_model{
		struct_size:  C.uint32_t(unsafe.Sizeof(C.qk_gru_model{})),
		flags:        C.uint32_t(m.Flags),
		input_size:   clamp(m.InputSize),
		hidden_size:  clamp(m.HiddenSize),
		h_view_shift: clamp(m.HViewShift),
	}
	for i := range m.Quant {
		raw.quant[i] = m.Quant[i].raw()
		raw.shift[i], raw.zero_point[i] = clamp(m.Shift[i]), clamp(m.ZeroPoint[i])
	}
	raw.w_shift = (*C.int8_t)(put(b, m.WShift))
	raw.r_shift = (*C.int8_t)(put(b, m.RShift))
	raw.bw_shift = (*C.int8_t)(put(b, m.BWShift))
	raw.br_shift = (*C.int8_t)(put(b, m.BRShift))
	if raw.w = put(b, m.W8); len(m.W16) != 0 {
		raw.w = put(b, m.W16)
	}
	if raw.r = put(b, m.R8); len(m.R16) != 0 {
		raw.r = put(b, m.R16)
	}
	raw.bw = (*C.int32_t)(put(b, m.BW))
	raw.br = (*C.int32_t)(put(b, m.BR))
	m.Update.place(b, &raw.update)
	m.Reset.place(b, &raw.reset)
	m.Candidate.place(b, &raw.candidate)

	var handle *C.qk_gru
	err := c.check(C.qk_gru_create_from_model(c.handle, &raw, &handle))
	runtime.KeepAlive(c)
	if err != nil {
		return nil, err
	}
	return adoptFrozen(handle)
}
