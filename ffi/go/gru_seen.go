package qk

/*
#include <string.h>
#include <qk.h>

// cgo forbids a struct of Go's with pointers to memory of Go's, so C makes the structs.
static qk_status go_get_ranges(qk_context *context, const qk_gru *gru, int64_t *samples,
                               double *min, double *max, double *x_sum, double *h_sum) {
    qk_gru_ranges ranges = QK_GRU_RANGES_INIT;
    ranges.x_sum = x_sum;
    ranges.h_sum = h_sum;
    qk_status status = qk_gru_get_ranges(context, gru, &ranges);
    *samples = ranges.samples;
    memcpy(min, ranges.min, sizeof ranges.min);
    memcpy(max, ranges.max, sizeof ranges.max);
    return status;
}
static qk_status go_take_ranges(qk_context *context, qk_gru *gru, int merge, int64_t samples,
                                const double *min, const double *max, double *x_sum,
                                double *h_sum) {
    qk_gru_ranges ranges = QK_GRU_RANGES_INIT;
    ranges.samples = samples;
    ranges.x_sum = x_sum;
    ranges.h_sum = h_sum;
    memcpy(ranges.min, min, sizeof ranges.min);
    memcpy(ranges.max, max, sizeof ranges.max);
    return merge ? qk_gru_merge_ranges(context, gru, &ranges)
                 : qk_gru_set_ranges(context, gru, &ranges);
}
*/
import "C"

import "unsafe"

// GruRanges is what calibration has seen of x, h, ih, hh and the gates.
type GruRanges struct {
	Samples    int64               // steps times sequences
	Min, Max   [gruTensors]float64 // W, R, BW, BR: 0, their values are known
	XSum, HSum []float64           // [c] and [h] over the samples; BiasCorrection needs both, or nil
}

// Ranges is what Calibrate has seen so far; before Freeze.
func (g *Gru) Ranges(c *Context) (*GruRanges, error) {
	r := &GruRanges{XSum: make([]float64, g.inputs), HSum: make([]float64, g.hidden)}
	var samples C.int64_t
	err := c.check(C.go_get_ranges(c.handle, g.handle, &samples, doubles(r.Min[:]),
		doubles(r.Max[:]), doubles(r.XSum), doubles(r.HSum)))
	g.keep(c, nil)
	if err != nil {
		return nil, err
	}
	r.Samples = int64(samples)
	return r, nil
}

// SetRanges takes these for what Calibrate has seen.
func (g *Gru) SetRanges(c *Context, r *GruRanges) error { return g.takeRanges(c, r, 0) }

// MergeRanges widens what has been seen by what another GRU of the same weights has.
func (g *Gru) MergeRanges(c *Context, r *GruRanges) error { return g.takeRanges(c, r, 1) }

func (g *Gru) takeRanges(c *Context, r *GruRanges, merge C.int) error {
	if r.XSum != nil && int64(len(r.XSum)) != g.inputs {
		return wrongLength("XSum", len(r.XSum), g.inputs)
	}
	if r.HSum != nil && int64(len(r.HSum)) != g.hidden {
		return wrongLength("HSum", len(r.HSum), g.hidden)
	}
	err := c.check(C.go_take_ranges(c.handle, g.handle, merge, C.int64_t(r.Samples),
		doubles(r.Min[:]), doubles(r.Max[:]), doubles(r.XSum), doubles(r.HSum)))
	g.keep(c, nil)
	return err
}

// doubles is nil for no values.
func doubles(values []float64) *C.double {
	if len(values) == 0 {
		return nil
	}
	return (*C.double)(unsafe.Pointer(&values[0]))
}

// GruClipped is how many codes were cut to their range.
type GruClipped struct {
	Samples int64             // steps times sequences that were counted
	Codes   [gruTensors]int64 // by GruTensor; W, R, BW, BR: 0
}

// CountClipped makes later runs count, from zero; many times slower, the same bits.
func (s *GruState) CountClipped(c *Context, on bool) error {
	err := c.check(C.qk_gru_state_count_clipped(c.handle, s.handle, flag(on)))
	s.keep(c)
	return err
}

// Clipped is what was counted.
func (s *GruState) Clipped(c *Context) (GruClipped, error) {
	raw := C.qk_gru_clipped{struct_size: C.uint32_t(unsafe.Sizeof(C.qk_gru_clipped{}))}
	err := c.check(C.qk_gru_state_clipped(c.handle, s.handle, &raw))
	s.keep(c)
	clipped := GruClipped{Samples: int64(raw.samples)}
	for i := range clipped.Codes {
		clipped.Codes[i] = int64(raw.codes[i])
	}
	return clipped, err
}
