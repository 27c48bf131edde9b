package qk

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"
)

// randomTensor has planes of random bytes, so that a byte from the wrong place is a wrong value,
// and floats that are numbers.
func randomTensor(t *testing.T, c *Context, seed *uint64, desc Desc) *Tensor {
	t.Helper()
	next := func() uint64 {
		*seed = *seed*6364136223846793005 + 1442695040888963407
		return *seed >> 33
	}
	made, err := NewTensor(c, desc)
	must(t, err)
	for plane := Plane(0); plane < planeCount; plane++ {
		size, err := desc.PlaneBytes(plane)
		must(t, err)
		kind := FormatF32
		switch {
		case plane == PlaneScale || plane == PlaneZero && desc.Flags&FloatMin != 0:
			kind = desc.ScaleFormat
		case plane == PlaneData && desc.GroupSize != 0 || plane == PlaneZero:
			kind = FormatI8
		}
		host := make([]byte, size)
		for i := 0; i < size; {
			switch {
			case plane == PlaneOrder: // 7 and k have no common divisor: a permutation
				binary.LittleEndian.PutUint32(host[i:], uint32(i/4*7%(size/4)))
				i += 4
			case kind == FormatF32:
				value := 0.5 + float32(next())/(1<<31)
				binary.LittleEndian.PutUint32(host[i:], math.Float32bits(value))
				i += 4
			case kind == FormatF16 || kind == FormatBF16:
				binary.LittleEndian.PutUint16(host[i:], uint16(0x3800+next()%1024))
				i += 2
			case kind == FormatE4M3 || kind == FormatE8M0:
				host[i] = byte(40 + next()%80)
				i++
			default:
				host[i] = byte(next())
				i++
			}
		}
		if size > 0 {
			must(t, Upload(c, made, plane, host))
		}
	}
	return made
}

func floatsOf(t *testing.T, c *Context, tensor *Tensor) []byte {
	t.Helper()
	desc, err := tensor.Desc()
	must(t, err)
	if desc.GroupSize != 0 {
		dense, err := NewTensor(c, Desc{Format: FormatF32, Shape: desc.Shape})
		must(t, err)
		must(t, c.Dequantize(tensor, dense))
		tensor = dense
	}
	host := make([]byte, 4*desc.Shape[0]*desc.Shape[1])
	must(t, Download(c, tensor, PlaneData, host))
	return host
}

type ends struct {
	dim        int
	begin, end int64
}

func checkSlices(t *testing.T, c *Context, tensor *Tensor, cuts []ends) {
	t.Helper()
	desc, err := tensor.Desc()
	must(t, err)
	n, k, whole := desc.Shape[0], desc.Shape[1], floatsOf(t, c, tensor)
	for _, cut := range cuts {
		part, err := c.Slice(tensor, cut.dim, cut.begin, cut.end)
		must(t, err)
		var expected []byte
		for r := int64(0); r < n; r++ {
			if cut.dim == 1 {
				expected = append(expected, whole[4*(r*k+cut.begin):4*(r*k+cut.end)]...)
			} else if r >= cut.begin && r < cut.end {
				expected = append(expected, whole[4*r*k:4*(r+1)*k]...)
			}
		}
		made, err := part.Desc()
		must(t, err)
		if made.Layout != LayoutRow || !bytes.Equal(floatsOf(t, c, part), expected) {
			t.Fatalf("%+v, %+v: %+v has other values", desc, cut, made)
		}
	}
}

func cutsOf(n, k int64) []ends {
	return []ends{{0, 0, n}, {0, 0, 1}, {0, 3, 8}, {0, 8, 16}, {0, n - 3, n}, {0, n / 2, n},
		{1, 0, k}, {1, 0, 16}, {1, 16, 48}, {1, 32, k}, {1, 16, 37}}
}

func TestSlicesOfFourBitsOfEveryLayout(t *testing.T) {
	c, seed := oneThread(t), uint64(1)
	for _, layout := range []Layout{LayoutRow, LayoutRowHigh, LayoutAWQGemm, LayoutAWQGemv,
		LayoutGPTQ, LayoutGPTQV1, LayoutWord} {
		for _, shape := range [][]int64{{24, 96}, {19, 117}} {
			for _, group := range []int{16, 32, GroupRow} {
				for _, flags := range []uint32{0, Symmetric} {
					checkSlices(t, c, randomTensor(t, c, &seed, Desc{Format: FormatU4Affine,
						ScaleFormat: FormatF16, Layout: layout, GroupSize: group, Shape: shape,
						Grouping: GroupingAlongK, Flags: flags}), cutsOf(shape[0], shape[1]))
				}
			}
		}
	}
}

func TestSlicesOfNestedScales(t *testing.T) {
	c, seed := oneThread(t), uint64(2)
	for _, shape := range [][]int64{{24, 96}, {40, 1040}} {
		for _, scale := range []Format{FormatLUT8, FormatI8} {
			checkSlices(t, c, randomTensor(t, c, &seed, Desc{Format: FormatNF4, ScaleFormat: scale,
				GroupSize: 16, ScaleGroupSize: 64, Shape: shape}), cutsOf(shape[0], shape[1]))
		}
		checkSlices(t, c, randomTensor(t, c, &seed, Desc{Format: FormatS8, ScaleFormat: FormatI8,
			GroupSize: 16, ScaleGroupSize: 8, Shape: shape, Flags: FloatMin}),
			cutsOf(shape[0], shape[1]))
	}
	whole := randomTensor(t, c, &seed, Desc{Format: FormatNF4, ScaleFormat: FormatLUT8,
		Layout: LayoutRowHigh, GroupSize: 64, Shape: []int64{640, 256}})
	for _, one := range []struct {
		begin int64
		scale Format
		size  int
	}{{64, FormatLUT8, 256}, {32, FormatLUT8, 128}, {3, FormatF32, 0}} {
		part, err := c.Slice(whole, 0, one.begin, 640)
		must(t, err)
		desc, err := part.Desc()
		must(t, err)
		if desc.ScaleFormat != one.scale || desc.ScaleGroupSize != one.size {
			t.Errorf("%+v: %+v", one, desc)
		}
	}
}

func TestSlicesOfFlatGroupsThatStraddleRows(t *testing.T) {
	c, seed := oneThread(t), uint64(3)
	for _, layout := range []Layout{LayoutRow, LayoutRowHigh} {
		for _, shape := range [][]int64{{24, 96}, {19, 112}, {24, 128}} {
			desc := Desc{Format: FormatU4Affine, ScaleFormat: FormatF32, Layout: layout,
				GroupSize: 64, Shape: shape, Grouping: GroupingFlat}
			checkSlices(t, c, randomTensor(t, c, &seed, desc), cutsOf(shape[0], shape[1]))
			desc.ScaleFormat, desc.ScaleGroupSize = FormatLUT8, 16
			checkSlices(t, c, randomTensor(t, c, &seed, desc), cutsOf(shape[0], shape[1]))
		}
	}
	whole := randomTensor(t, c, &seed, Desc{Format: FormatNF4, ScaleFormat: FormatF32,
		GroupSize: 64, Shape: []int64{8, 40}, Grouping: GroupingFlat})
	_, err := c.Slice(whole, 0, 1, 8)
	refused(t, err, StatusShape, "within a group of 64 codes, which straddle")
}

func TestSlicesOfOtherFormats(t *testing.T) {
	c, seed := oneThread(t), uint64(4)
	shape := []int64{24, 96}
	for _, desc := range []Desc{
		{Format: FormatF32},
		{Format: FormatS8, ScaleFormat: FormatF32, GroupSize: GroupRow},
		{Format: FormatLUT8, ScaleFormat: FormatF32, GroupSize: 32},
		{Format: FormatE4M3, ScaleFormat: FormatE8M0, GroupSize: 32},
		{Format: FormatLUT4, ScaleFormat: FormatF16, GroupSize: 32},
		{Format: FormatFP4E2M1, ScaleFormat: FormatE4M3, GroupSize: 16,
			Flags: GlobalRows | GlobalDivides},
		{Format: FormatS8, ScaleFormat: FormatBF16, GroupSize: 16, Flags: FloatMin},
	} {
		desc.Shape = shape
		checkSlices(t, c, randomTensor(t, c, &seed, desc), cutsOf(24, 96))
	}
	whole := randomTensor(t, c, &seed, Desc{Format: FormatU4Affine, ScaleFormat: FormatF16,
		GroupSize: 16, Layout: LayoutGPTQ, Shape: shape, Flags: Ordered})
	checkSlices(t, c, whole, []ends{{0, 0, 24}, {0, 5, 11}})
	_, err := c.Slice(whole, 1, 16, 32)
	refused(t, err, StatusFormat, "act-order")
}

func TestBadSlicesAreRefused(t *testing.T) {
	c, seed := oneThread(t), uint64(5)
	desc := Desc{Format: FormatNF4, ScaleFormat: FormatF32, GroupSize: 32, Shape: []int64{24, 96}}
	whole := randomTensor(t, c, &seed, desc)
	for _, wrong := range []struct {
		ends
		status   Status
		sentence string
	}{
		{ends{2, 0, 1}, StatusArgument, "dim: is 2"},
		{ends{0, 3, 3}, StatusArgument, "are 3 and 3"},
		{ends{0, -1, 3}, StatusArgument, "are -1 and 3"},
		{ends{0, 0, 25}, StatusArgument, "within 0..24"},
		{ends{1, 8, 16}, StatusShape, "multiples of 16"},
	} {
		_, err := c.Slice(whole, wrong.dim, wrong.begin, wrong.end)
		refused(t, err, wrong.status, wrong.sentence)
	}
	desc.Shape = []int64{2, 24, 96}
	_, err := c.Slice(randomTensor(t, c, &seed, desc), 0, 0, 1)
	refused(t, err, StatusShape, "has rank 3")
	_, err = c.Slice(nil, 0, 0, 1)
	refused(t, err, StatusNull, "")
}
