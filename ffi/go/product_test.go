package qk

import (
	"math"
	"testing"
)

func packed(t *testing.T, c *Context, n, k int64) *Tensor {
	t.Helper()
	desc := Desc{Format: FormatNF4, ScaleFormat: FormatF32, GroupSize: 64, Shape: []int64{n, k}}
	row, err := NewTensor(c, desc)
	must(t, err)
	must(t, c.Quantize(dense(t, c, weights(int(n*k), 3), n, k), row))
	desc.Layout = LayoutPacked
	made, err := NewTensor(c, desc)
	must(t, err)
	must(t, c.Repack(row, made))
	return made
}

func TestMultiplyGivesWhatEachGives(t *testing.T) {
	c := oneThread(t)
	w, v := packed(t, c, 64, 128), packed(t, c, 24, 64)
	x, bias := dense(t, c, weights(3*128, 5), 3, 128), dense(t, c, weights(24, 7), 24)
	y, z, expected := empty(t, c, 3, 64), empty(t, c, 3, 24), empty(t, c, 3, 24)
	must(t, c.Multiply(Product{X: x, W: w, Y: y}, Product{X: y, W: v, Bias: bias, Y: z}))
	must(t, c.Linear(y, v, bias, expected))
	got, want := values(t, c, z, 3*24), values(t, c, expected, 3*24)
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("%d: %v, expected %v", i, got[i], want[i])
		}
	}
	must(t, c.Multiply())
}

func TestNoRowsAreAResult(t *testing.T) {
	c := oneThread(t)
	w := packed(t, c, 64, 128)
	x, y := dense(t, c, nil, 0, 128), empty(t, c, 0, 64)
	must(t, c.Linear(x, w, nil, y))
	must(t, c.Multiply(Product{X: x, W: w, Y: y}))
	plan, err := c.Explain(Product{X: x, W: w, Y: y})
	must(t, err)
	if plan.Kernel != "nothing" || plan.WorkspaceBytes != 0 {
		t.Fatalf("%+v", plan)
	}
	if got := values(t, c, y, 0); len(got) != 0 {
		t.Fatalf("%v", got)
	}
	memory, err := NewMemory(0)
	must(t, err)
	_, err = WrapTensor(c, Desc{Format: FormatF32, Shape: []int64{0, 64}}, memory)
	must(t, err)
}

func TestAWrongProductIsNamedAndNoneRuns(t *testing.T) {
	c := oneThread(t)
	w, v := packed(t, c, 64, 128), packed(t, c, 24, 64)
	x, y := dense(t, c, weights(3*128, 5), 3, 128), dense(t, c, make([]float32, 3*64), 3, 64)
	wrong := Product{X: x, W: v, Y: empty(t, c, 3, 24)}
	refused(t, c.Multiply(Product{X: x, W: w, Y: y}, wrong), StatusShape,
		"products[1]: w: k is 64, x has k 128")
	_, err := c.MultiplyWorkspace(wrong)
	refused(t, err, StatusShape, "products[0]: w: k is 64")
	_, err = c.Explain(wrong)
	refused(t, err, StatusShape, "w: k is 64, x has k 128")
	_, err = c.Explain(Product{})
	refused(t, err, StatusNull, "x")
	for _, value := range values(t, c, y, 3*64) {
		if value != 0 {
			t.Fatal("a product ran")
		}
	}
}

func TestPlansSayWhatRuns(t *testing.T) {
	for _, flags := range []uint32{0, Int8Activations} {
		c, err := NewContext(Options{Threads: 1, Flags: flags, WorkspaceBytes: 1 << 20})
		must(t, err)
		w := packed(t, c, 64, 128)
		for _, m := range []int64{1, 3} {
			first, last := 1, math.MaxInt32
			if flags == 0 && m == 1 {
				last = 2
			} else if flags == 0 {
				first = 3
			}
			product := Product{X: empty(t, c, m, 128), W: w, Y: empty(t, c, m, 64)}
			plan, err := c.Explain(product)
			must(t, err)
			bytes, err := c.MultiplyWorkspace(product)
			must(t, err)
			if plan.Kernel == "" || plan.BatchFirst != first || plan.BatchLast != last ||
				plan.WorkspaceBytes != bytes {
				t.Fatalf("m %d, flags %d: %+v, workspace %d", m, flags, plan, bytes)
			}
		}
	}
}

func TestWeightsAreDequantizedToColumns(t *testing.T) {
	c := oneThread(t)
	const n, k, width = 24, 64, 24 + 5
	w, rows := packed(t, c, n, k), empty(t, c, n, k)
	must(t, c.Dequantize(w, rows))
	desc := Desc{Format: FormatF32, Flags: ColumnMajor, Shape: []int64{n, k}}
	columns, err := NewTensor(c, desc)
	must(t, err)
	must(t, c.Dequantize(w, columns))
	desc.RowStride = width
	bytes, err := desc.PlaneBytes(PlaneData)
	must(t, err)
	memory, err := NewMemory(bytes)
	must(t, err)
	wide, err := WrapTensor(c, desc, memory)
	must(t, err)
	apart := View[float32](memory)
	for i := range apart {
		apart[i] = 7
	}
	must(t, c.Dequantize(w, wide))
	expected, got := values(t, c, rows, n*k), values(t, c, columns, n*k)
	for i, value := range expected {
		row, column := i/k, i%k
		if got[column*n+row] != value || apart[column*width+row] != value {
			t.Fatalf("[%d,%d] is %v and %v, expected %v", row, column, got[column*n+row],
				apart[column*width+row], value)
		}
	}
	for i, value := range apart {
		if i%width >= n && value != 7 {
			t.Fatalf("%v between columns", value)
		}
	}
}

func TestProductsAreTransposedAddUpAndTakeSlices(t *testing.T) {
	c := oneThread(t)
	const m, n, k, width = 3, 24, 64, 64 + 7
	w, rows := packed(t, c, n, k), empty(t, c, n, k)
	must(t, c.Dequantize(w, rows))
	numbers := values(t, c, rows, n*k)
	for _, transposed := range []bool{false, true} {
		in, out := int64(k), int64(n)
		if transposed {
			in, out = n, k
		}
		array := weights(m*width, 5)
		compact := make([]float32, 0, m*in)
		for row := 0; row < m; row++ {
			compact = append(compact, array[row*width:row*width+int(in)]...)
		}
		desc := Desc{Format: FormatF32, Shape: []int64{m, in}, RowStride: width}
		bytes, err := desc.PlaneBytes(PlaneData)
		must(t, err)
		memory, err := NewMemory(bytes)
		must(t, err)
		copy(View[float32](memory), array)
		slice, err := WrapTensor(c, desc, memory)
		must(t, err)
		run := func(x *Tensor, start float32, accumulate bool) []float32 {
			y := make([]float32, m*out)
			for i := range y {
				y[i] = start
			}
			to := dense(t, c, y, m, out)
			must(t, c.Multiply(Product{X: x, W: w, Y: to, Transposed: transposed,
				Accumulate: accumulate}))
			return values(t, c, to, len(y))
		}
		x := dense(t, c, compact, m, in)
		once, added, sliced := run(x, 7, false), run(x, 2, true), run(slice, 7, false)
		for i, value := range once {
			row, column := i/int(out), i%int(out)
			sum := 0.0
			for j := 0; j < int(in); j++ {
				at := column*k + j
				if transposed {
					at = j*k + column
				}
				sum += float64(compact[row*int(in)+j]) * float64(numbers[at])
			}
			if math.Abs(float64(value)-sum) > 1e-5 || added[i] != 2+value || sliced[i] != value {
				t.Fatalf("%d: %v, added %v, of a slice %v, expected %v", i, value, added[i],
					sliced[i], sum)
			}
		}
	}
}
