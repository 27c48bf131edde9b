package qk

import (
	"bytes"
	"reflect"
	"testing"
)

func TestRangesAreReadGivenAndMerged(t *testing.T) {
	c := oneThread(t)
	data := [][]float32{weights(steps*batch*inputs, 5), weights(steps*batch*inputs, 6)}
	fresh := func(parts ...[]float32) *Gru {
		g, err := NewGru(c, GruConfig{InputSize: inputs, HiddenSize: units, Preset: W8A8,
			Flags: BiasCorrection}, GruWeights{WIH: weights(3*units*inputs, 1),
			WHH: weights(3*units*units, 2)})
		must(t, err)
		for _, part := range parts {
			must(t, g.Calibrate(c, signal(t, c, part), nil))
		}
		return g
	}
	seen := func(g *Gru) *GruRanges {
		r, err := g.Ranges(c)
		must(t, err)
		return r
	}
	image := func(g *Gru) []byte {
		must(t, g.Freeze(c))
		saved, err := g.Save()
		must(t, err)
		return saved
	}
	whole, given, merged := fresh(data...), fresh(), fresh()
	ranges := seen(whole)
	largest := float32(-1)
	for _, part := range data {
		for _, value := range part {
			if value > largest {
				largest = value
			}
		}
		must(t, merged.MergeRanges(c, seen(fresh(part))))
	}
	if ranges.Samples != 2*steps*batch || ranges.Max[GruX] != float64(largest) {
		t.Fatal(ranges)
	}
	must(t, given.SetRanges(c, ranges))
	if !reflect.DeepEqual(seen(given), ranges) || !reflect.DeepEqual(seen(merged), ranges) {
		t.Error("ranges came back changed")
	}
	expected := image(whole)
	if !bytes.Equal(image(given), expected) || !bytes.Equal(image(merged), expected) {
		t.Error("other bytes from the same ranges")
	}
	wrong := *ranges
	wrong.XSum = make([]float64, inputs+1)
	refused(t, fresh().SetRanges(c, &wrong), StatusBufferSize, "XSum: has 6 elements, must have 5")
	wrong = *ranges
	wrong.HSum = wrong.HSum[1:]
	refused(t, fresh().MergeRanges(c, &wrong), StatusBufferSize, "HSum: has 6")
	refused(t, trained(t, c, W8A8).SetRanges(c, ranges), StatusUnsupported, "data")
}

func TestCodesThatAreCutAreCounted(t *testing.T) {
	c := oneThread(t)
	g := frozen(t, c, W8H16)
	state, err := g.NewState(c, batch)
	must(t, err)
	huge := make([]float32, steps*batch*inputs)
	for i := range huge {
		huge[i] = 1e6
	}
	x, y := signal(t, c, huge), empty(t, c, steps, batch, units)
	for _, on := range []bool{true, false} { // what was counted stays
		must(t, state.CountClipped(c, on))
		must(t, g.Run(c, state, x, y))
		clipped, err := state.Clipped(c)
		must(t, err)
		if clipped.Samples != steps*batch || clipped.Codes[GruX] != steps*batch*inputs ||
			clipped.Codes[GruW] != 0 {
			t.Error(clipped)
		}
	}
}
