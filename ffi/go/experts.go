package qk

/*
#include <stdlib.h>
#include <qk.h>
*/
import "C"

// Experts say which weights of a W [E,n,k] each row of a product's X meets, and what becomes of the
// results.
//
// Slot j of token t is z = x . transpose(w[e]) + bias[e], e = Expert[t,j]. X is [t,k] or, a row a
// slot, [t,top_k,k]. Y is [t,top_k,n], z itself, or [t,n]: a token's slots, each times its Weight,
// added up. Slots with e < 0 are skipped; e >= E gives NaN.
type Experts struct {
	Expert      *Tensor    // I32 [t,top_k]
	Weight      *Tensor    // F32 [t,top_k]; nil: 1; nil where Y has a row a slot
	Activation  Activation // joins W's gate and up rows, so that Y has half as many columns
	Interleaved bool       // gate and up rows alternate; else they are halves
	Limit       float32    // of ActivationSwiGLUClamped: above 0, 7 in gpt-oss
	Alpha       float32    // of ActivationSwiGLUClamped: 1.702 in gpt-oss
}

// raw is in C's memory, for a list in Go's may point to nothing else; the caller frees it.
func (e *Experts) raw() *C.qk_experts {
	raw := (*C.qk_experts)(C.malloc(C.sizeof_qk_experts)) // never nil: cgo's malloc panics instead
	*raw = C.qk_experts{
		struct_size: C.sizeof_qk_experts,
		expert:      e.Expert.raw(),
		weight:      e.Weight.raw(),
		activation:  C.qk_activation(e.Activation),
		limit:       C.float(e.Limit),
		alpha:       C.float(e.Alpha),
	}
	if e.Interleaved {
		raw.flags = C.QK_EXPERTS_INTERLEAVED
	}
	return raw
}
