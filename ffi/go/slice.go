package qk

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Slices are bytes moved once, when a model is loaded, so they go by way of the host. The places of
// codes, scales and zeros in LayoutRow are docs/formats.md's.

const (
	smallestGroup     = 16 // qk.h, qk_tensor_desc
	smallestGroupOfI8 = 8
)

// Slice is rows (dim 0) or columns (dim 1) of a weight [n,k] as one of their own, in LayoutRow: a
// share for each of several devices. Values are the same bits. Groups are smaller where a slice
// begins within one, and second groups where those of nested scales are cut. A dense tensor has
// slices too. The way is through the host.
func (c *Context) Slice(t *Tensor, dim int, begin, end int64) (*Tensor, error) {
	desc, err := t.Desc()
	if err != nil {
		return nil, err
	}
	s, err := newCut(desc, dim, begin, end)
	if err != nil {
		return nil, err
	}
	desc.Flags &^= ReadOnly
	if desc.Layout != LayoutRow {
		desc.Layout = LayoutRow
		byRows, err := NewTensor(c, desc)
		if err != nil {
			return nil, err
		}
		defer byRows.Close()
		if err := c.Repack(t, byRows); err != nil {
			return nil, err
		}
		t = byRows
	}
	var planes [planeCount][]byte
	for i := range planes {
		size, err := desc.PlaneBytes(Plane(i))
		if err != nil {
			return nil, err
		}
		planes[i] = make([]byte, size)
		if size == 0 {
			continue
		}
		if err := Download(c, t, Plane(i), planes[i]); err != nil {
			return nil, err
		}
	}
	made := s.apply(desc, &planes)
	out, err := NewTensor(c, made)
	if err != nil {
		return nil, err
	}
	for i, plane := range planes {
		if len(plane) == 0 {
			continue
		}
		if err := Upload(c, out, Plane(i), plane); err != nil {
			out.Close()
			return nil, err
		}
	}
	return out, nil
}

// cut is rows and columns that stay, and the groups of what they become.
type cut struct {
	n, k                 int
	firstRow, rows       int
	firstColumn, columns int
	straddles            bool // groups of the whole weight run on over the ends of rows
	oldSize, size        int  // of a group
}

func newCut(desc Desc, dim int, begin, end int64) (*cut, error) {
	if len(desc.Shape) != 2 || desc.RowStride != 0 {
		return nil, NewError(StatusShape,
			fmt.Sprintf("tensor: has rank %d, accepted are compact [n,k]", len(desc.Shape)))
	}
	if dim != 0 && dim != 1 {
		return nil, NewError(StatusArgument,
			fmt.Sprintf("dim: is %d, accepted are 0 (n) and 1 (k)", dim))
	}
	if begin < 0 || begin >= end || end > desc.Shape[dim] {
		return nil, NewError(StatusArgument, fmt.Sprintf("begin, end: are %d and %d, accepted is "+
			"what follows on the other within 0..%d", begin, end, desc.Shape[dim]))
	}
	if dim == 1 && desc.Flags&Ordered != 0 {
		return nil, NewError(StatusFormat, "tensor: has an order of columns (act-order), whose "+
			"groups are not side by side; accepted is dim 0")
	}
	s := &cut{n: int(desc.Shape[0]), k: int(desc.Shape[1])}
	s.rows, s.columns, s.oldSize = s.n, s.k, s.k
	if dim == 0 {
		s.firstRow, s.rows = int(begin), int(end-begin)
	} else {
		s.firstColumn, s.columns = int(begin), int(end-begin)
	}
	if desc.GroupSize > 0 {
		s.oldSize = desc.GroupSize
	}
	s.straddles = desc.Grouping == GroupingFlat && s.k%s.oldSize != 0
	s.size = s.oldSize
	over := ""
	if desc.GroupSize > 0 {
		s.size = gcd(s.oldSize, s.firstColumn)
		if s.straddles {
			s.size, over = gcd(s.size, s.k), ", which straddle rows"
		}
	}
	if s.size < smallestGroup && s.size != s.oldSize {
		return nil, NewError(StatusShape, fmt.Sprintf("begin: is %d, within a group of %d codes%s; "+
			"slices begin at multiples of %d codes", begin, s.oldSize, over, smallestGroup))
	}
	return s, nil
}

// apply makes of the planes of the whole in LayoutRow those of the slice, and its description.
func (s *cut) apply(whole Desc, planes *[planeCount][]byte) Desc {
	desc := whole
	desc.Shape = []int64{int64(s.rows), int64(s.columns)}
	planes[PlaneData] = s.codes(planes[PlaneData])
	if whole.GroupSize == 0 {
		return desc
	}
	desc.Grouping = GroupingAlongK
	if whole.GroupSize > 0 {
		desc.GroupSize = s.size
	}
	groups, count := s.groups(), s.n*s.groupsOfRow()
	if s.straddles {
		count = (s.n*s.k + s.oldSize - 1) / s.oldSize
	}
	planes[PlaneScale] = pick(planes[PlaneScale], count, groups)
	if whole.Flags&FloatMin != 0 {
		planes[PlaneZero] = pick(planes[PlaneZero], count, groups)
	} else if len(planes[PlaneZero]) > 0 {
		planes[PlaneZero] = s.zeros(planes[PlaneZero], groups, whole.Grouping)
	}
	if whole.Flags&GlobalRows != 0 {
		planes[PlaneGlobal] = planes[PlaneGlobal][4*s.firstRow:][:4*s.rows]
	}
	if len(planes[PlaneScale2]) > 0 {
		nest(&desc, planes, groups)
	}
	return desc
}

// codes are those of the slice, or elements of a dense one; nibbles begin at bytes, as groups do.
func (s *cut) codes(data []byte) []byte {
	row := len(data) / s.n
	nibbles := row < s.k || s.k == 1 && row == 1
	first, last := s.firstColumn*(row/s.k), (s.firstColumn+s.columns)*(row/s.k)
	if nibbles {
		first, last = s.firstColumn/2, (s.firstColumn+s.columns+1)/2
	}
	made := make([]byte, 0, s.rows*(last-first))
	for r := s.firstRow; r < s.firstRow+s.rows; r++ {
		made = append(made, data[r*row+first:r*row+last]...)
		if nibbles && s.columns%2 == 1 {
			made[len(made)-1] &= 15 // no neighbour in the padding
		}
	}
	return made
}

func (s *cut) groupsOfRow() int { return (s.k + s.oldSize - 1) / s.oldSize }

// groups is the old group of each new one.
func (s *cut) groups() []int {
	var groups []int
	for r := s.firstRow; r < s.firstRow+s.rows; r++ {
		for k := s.firstColumn; k < s.firstColumn+s.columns; k += s.size {
			if s.straddles {
				groups = append(groups, (r*s.k+k)/s.oldSize)
			} else {
				groups = append(groups, r*s.groupsOfRow()+k/s.oldSize)
			}
		}
	}
	return groups
}

// zeros are nibbles, low first: a flat tensor's are one run, else rows begin at bytes.
func (s *cut) zeros(plane []byte, groups []int, grouping Grouping) []byte {
	ofRow := s.groupsOfRow()
	old := func(group int) byte {
		if grouping != GroupingFlat {
			group = group/ofRow*(ofRow+ofRow%2) + group%ofRow
		}
		return plane[group/2] >> (4 * (group % 2)) & 15
	}
	var made []byte
	width := len(groups) / s.rows
	for row := 0; row < s.rows; row++ {
		for g := 0; g < width; g++ {
			zero := old(groups[row*width+g])
			if g%2 == 0 {
				made = append(made, zero)
			} else {
				made[len(made)-1] |= zero << 4
			}
		}
	}
	return made
}

// nest makes second scales of groups as small as they must be, or else the scales the f32 that they
// are.
func nest(desc *Desc, planes *[planeCount][]byte, groups []int) {
	isI8, size, smallest := desc.ScaleFormat == FormatI8, desc.ScaleGroupSize, smallestGroup
	if isI8 {
		smallest = smallestGroupOfI8
	}
	if size == 0 {
		size = 256
	}
	numbers := make([]int, len(groups))
	for i, group := range groups {
		numbers[i] = group / size
	}
	for ; size >= smallest; size /= 2 {
		if starts, ok := alike(numbers, size); ok {
			desc.ScaleGroupSize = size
			for _, plane := range []Plane{PlaneScale2, PlaneMin2} {
				planes[plane] = pick(planes[plane], len(planes[plane])/4, starts)
			}
			return
		}
		if size%2 == 1 {
			break
		}
	}
	code := func(b byte) float32 { return float32(int8(b)) }
	var bias float32
	if !isI8 {
		codes := numbersOf(planes[PlaneScaleCode])
		code, bias = func(b byte) float32 { return codes[b] }, numbersOf(planes[PlaneScaleBias])[0]
	}
	for plane, second := range map[Plane]Plane{PlaneScale: PlaneScale2, PlaneZero: PlaneMin2} {
		seconds := numbersOf(planes[second])
		planes[second] = nil
		if len(seconds) == 0 {
			continue // no minima
		}
		values := make([]byte, 4*len(numbers))
		for i, number := range numbers {
			value := float32(code(planes[plane][i])*seconds[number]) + bias // float32: not fused
			binary.LittleEndian.PutUint32(values[4*i:], math.Float32bits(value))
		}
		planes[plane] = values
	}
	planes[PlaneScaleCode], planes[PlaneScaleBias] = nil, nil
	desc.ScaleFormat, desc.ScaleGroupSize = FormatF32, 0
}

// alike are the first of each run of this size, if all of it are equal.
func alike(numbers []int, size int) (starts []int, ok bool) {
	for i, number := range numbers {
		if i%size == 0 {
			starts = append(starts, number)
		}
		if number != starts[i/size] {
			return nil, false
		}
	}
	return starts, true
}

// pick gives elements of a plane that has count of them.
func pick(plane []byte, count int, elements []int) []byte {
	if len(plane) == 0 {
		return nil
	}
	size := len(plane) / count
	made := make([]byte, 0, len(elements)*size)
	for _, element := range elements {
		made = append(made, plane[element*size:][:size]...)
	}
	return made
}

func numbersOf(plane []byte) []float32 {
	values := make([]float32, len(plane)/4)
	for i := range values {
		values[i] = math.Float32frombits(binary.LittleEndian.Uint32(plane[4*i:]))
	}
	return values
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
