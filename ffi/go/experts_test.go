package qk

import (
	"math"
	"testing"
)

const (
	experts, rowsOfOne, columns = 5, 32, 64
	tokens, slots               = 3, 2
)

var (
	chosen = []int32{4, 0, 2, 2, 1, 3}
	shares = []float32{0.75, 0.25, 0.5, 0.125, 1, 2}
)

func nf4(t *testing.T, c *Context, values []float32, shape ...int64) *Tensor {
	t.Helper()
	made, err := NewTensor(c, Desc{Format: FormatNF4, ScaleFormat: FormatF32, GroupSize: 32,
		Shape: shape})
	must(t, err)
	must(t, c.Quantize(dense(t, c, values, shape...), made))
	return made
}

func ids(t *testing.T, c *Context, values []int32) *Tensor {
	t.Helper()
	made, err := FromSlice(c, Desc{Format: FormatI32, Shape: []int64{tokens, slots}}, values)
	must(t, err)
	return made
}

// mixture is the experts as one weight, x, and each slot's row by a product of one row.
func mixture(t *testing.T, c *Context) (w, x *Tensor, z [][]float32) {
	t.Helper()
	of, ofX := weights(experts*rowsOfOne*columns, 3), weights(tokens*columns, 5)
	for slot, e := range chosen {
		alone := nf4(t, c, of[int(e)*rowsOfOne*columns:][:rowsOfOne*columns], rowsOfOne, columns)
		y := empty(t, c, 1, rowsOfOne)
		must(t, c.Linear(dense(t, c, ofX[slot/slots*columns:][:columns], 1, columns), alone, nil, y))
		z = append(z, values(t, c, y, rowsOfOne))
	}
	return nf4(t, c, of, experts, rowsOfOne, columns), dense(t, c, ofX, tokens, columns), z
}

func TestASlotIsItsOwnProduct(t *testing.T) {
	c := oneThread(t)
	w, x, z := mixture(t, c)
	y := empty(t, c, tokens, slots, rowsOfOne)
	product := Product{X: x, W: w, Y: y, Experts: &Experts{Expert: ids(t, c, chosen)}}
	must(t, c.Multiply(product))
	for slot, row := range z {
		got := values(t, c, y, len(z)*rowsOfOne)[slot*rowsOfOne:]
		for i := range row {
			if got[i] != row[i] {
				t.Fatalf("slot %d, %d: %v, expected %v", slot, i, got[i], row[i])
			}
		}
	}
	plan, err := c.Explain(product)
	must(t, err)
	_, err = c.MultiplyWorkspace(product)
	must(t, err)
	if plan.Kernel == "" {
		t.Error("no kernel")
	}
	product.Experts.Expert = ids(t, c, []int32{-1, experts, 0, 0, 0, 0})
	must(t, c.Multiply(product))
	got := values(t, c, y, len(z)*rowsOfOne)
	for i := 0; i < rowsOfOne; i++ {
		if got[i] != 0 || !math.IsNaN(float64(got[rowsOfOne+i])) {
			t.Fatalf("%d: %v and %v, expected 0 and NaN", i, got[i], got[rowsOfOne+i])
		}
	}
}

func TestSlotsAreJoinedAndAddedUp(t *testing.T) {
	c := oneThread(t)
	w, x, z := mixture(t, c)
	share, err := FromSlice(c, Desc{Format: FormatF32, Shape: []int64{tokens, slots}}, shares)
	must(t, err)
	sigmoid := func(v float64) float64 { return 1 / (1 + math.Exp(-v)) }
	const half = rowsOfOne / 2
	cases := []struct {
		experts Experts
		columns int
		join    func(row []float32, i int) float64
	}{
		{Experts{}, rowsOfOne, func(row []float32, i int) float64 { return float64(row[i]) }},
		{Experts{Activation: ActivationSiLU}, half, func(row []float32, i int) float64 {
			gate := float64(row[i])
			return gate * sigmoid(gate) * float64(row[half+i])
		}},
		{Experts{Activation: ActivationSwiGLUClamped, Interleaved: true, Limit: 0.5, Alpha: 1.702},
			half, func(row []float32, i int) float64 {
				gate := math.Min(float64(row[2*i]), 0.5)
				up := math.Max(-0.5, math.Min(float64(row[2*i+1]), 0.5))
				return gate * sigmoid(1.702*gate) * (up + 1)
			}},
	}
	for _, one := range cases {
		one.experts.Expert, one.experts.Weight = ids(t, c, chosen), share
		y := empty(t, c, tokens, int64(one.columns))
		must(t, c.Multiply(Product{X: x, W: w, Y: y, Experts: &one.experts}))
		for at, got := range values(t, c, y, tokens*one.columns) {
			want, token := 0.0, at/one.columns
			for slot := token * slots; slot < (token+1)*slots; slot++ {
				want += float64(shares[slot]) * one.join(z[slot], at%one.columns)
			}
			if math.Abs(float64(got)-want) > 1e-5*math.Abs(want)+1e-6 {
				t.Fatalf("%+v, %d: %v, expected %v", one.experts, at, got, want)
			}
		}
	}
}

func TestWrongExpertsAreRefused(t *testing.T) {
	c := oneThread(t)
	w, x, _ := mixture(t, c)
	share := dense(t, c, shares, tokens, slots)
	y := empty(t, c, tokens, slots, rowsOfOne)
	alone := nf4(t, c, weights(rowsOfOne*columns, 3), rowsOfOne, columns)
	expert := ids(t, c, chosen)
	for _, wrong := range []struct {
		w        *Tensor
		experts  Experts
		status   Status
		sentence string
	}{
		{alone, Experts{Expert: expert}, StatusShape, "products[0]: w:"},
		{w, Experts{Expert: share}, StatusFormat, "expert:"},
		{w, Experts{}, StatusNull, "expert"},
		{w, Experts{Expert: expert, Weight: share}, StatusShape, "weight:"},
		{w, Experts{Expert: expert, Activation: 9}, StatusArgument, "activation"},
		{w, Experts{Expert: expert, Activation: ActivationSwiGLUClamped}, StatusArgument, "limit"},
	} {
		experts := wrong.experts
		refused(t, c.Multiply(Product{X: x, W: wrong.w, Y: y, Experts: &experts}), wrong.status,
			wrong.sentence)
	}
}
