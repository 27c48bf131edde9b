package qk

import (
	"fmt"
	"math"
	"runtime"
	"testing"

	"qk/internal/counting"
)

// TestIntegersThatCHasNoRoomFor: past 32 bits they would be taken for small ones.
func TestIntegersThatCHasNoRoomFor(t *testing.T) {
	c, g := oneThread(t), frozen(t, oneThread(t), W8H16)
	const over = 1 << 32
	nested := Desc{Format: FormatNF4, ScaleFormat: FormatLUT8, GroupSize: 64, Shape: []int64{4, 64}}
	for name, call := range map[string]func(add int) error{
		"GroupSize": func(add int) error {
			_, err := NewTensor(c, Desc{Format: FormatNF4, ScaleFormat: FormatF32, GroupSize: 64 + add,
				Shape: []int64{4, 64}})
			return err
		},
		"ScaleGroupSize": func(add int) error {
			desc := nested
			desc.ScaleGroupSize = 256 + add
			_, err := desc.PlaneBytes(PlaneData)
			return err
		},
		"Threads":     func(add int) error { return made(Options{Threads: 1 + add}) },
		"DeviceIndex": func(add int) error { return made(Options{Threads: 1, DeviceIndex: add}) },
		"bits": func(add int) error {
			return trained(t, c, W8H16).SetQuant(GruW,
				GruQuant{Bits: 8 + add, IsSymmetric: true, Granularity: 2})
		},
		"granularity": func(add int) error {
			return trained(t, c, W8H16).SetQuant(GruW,
				GruQuant{Bits: 8, IsSymmetric: true, Granularity: 1 + add})
		},
		"channel": func(add int) error { _, _, err := g.Scale(GruW, 1+add); return err },
		"batch":   func(add int) error { _, err := g.NewState(c, 2+add); return err },
		"Workspace": func(add int) error {
			_, err := g.Workspace(c, 2+add, 4)
			return err
		},
		"config": func(add int) error {
			_, err := NewGru(c, GruConfig{InputSize: 1 + add, HiddenSize: 1, Preset: W8H16,
				Calibration: CalibrateMinMax, GateOrder: OrderRZN},
				GruWeights{WIH: make([]float32, 3), WHH: make([]float32, 3)})
			return err
		},
		"table": func(add int) error {
			model, err := g.Model()
			must(t, err)
			model.Update.Kind += add
			_, err = NewGruFromModel(c, model)
			return err
		},
		"shift": func(add int) error {
			model, err := g.Model()
			must(t, err)
			model.Shift[GruH] += add
			_, err = NewGruFromModel(c, model)
			return err
		},
	} {
		must(t, call(0))
		for _, add := range []int{over, -over, 3 * over, math.MinInt} {
			if err := call(add); err == nil {
				t.Errorf("%s: %d more was taken for none", name, add)
			}
		}
	}
	refused(t, made(Options{Threads: over + 1}), StatusArgument,
		"Threads: is 4294967297, accepted are 0 to 1024")
	refused(t, made(Options{DeviceIndex: -1}), StatusArgument, "DeviceIndex: is -1, accepted are 0")
	refused(t, made(Options{WorkspaceBytes: -8}), StatusArgument, "WorkspaceBytes: is -8, accepted")
}

func made(options Options) error {
	c, err := NewContext(options)
	if err == nil {
		c.Close()
	}
	return err
}

func TestPlanesHaveExactlyTheirBytes(t *testing.T) {
	c := oneThread(t)
	desc := Desc{Format: FormatNF4, ScaleFormat: FormatF32, GroupSize: 64, Shape: []int64{4, 64}}
	memory := func(bytes int) *Memory {
		m, err := NewMemory(bytes)
		must(t, err)
		return m
	}
	for _, sizes := range [][2]int{{127, 16}, {129, 16}, {256, 16}, {128, 15}, {128, 20}, {0, 16}} {
		_, err := WrapTensor(c, desc, memory(sizes[0]), memory(sizes[1]))
		wrong, found, needed := 0, sizes[0], 128
		if found == needed {
			wrong, found, needed = 1, sizes[1], 16
		}
		refused(t, err, StatusBufferSize,
			fmt.Sprintf("planes[%d]: has %d bytes, must have %d", wrong, found, needed))
	}
	_, err := WrapTensor(c, desc, memory(128), memory(16), memory(4)) // a plane that nf4 has not
	refused(t, err, StatusBufferSize, "planes[2]: has 4 bytes, must have 0")
	tensor, err := NewTensor(c, desc)
	must(t, err)
	for _, bytes := range []int{127, 129} {
		refused(t, Upload(c, tensor, PlaneData, make([]byte, bytes)), StatusBufferSize, "")
		refused(t, Download(c, tensor, PlaneData, make([]byte, bytes)), StatusBufferSize, "")
	}
}

func TestStartsHaveExactlyTheirValues(t *testing.T) {
	c := oneThread(t)
	g := trained(t, c, W8H16)
	x := signal(t, c, weights(steps*batch*inputs, 5))
	y := empty(t, c, steps, batch, units)
	for _, length := range []int{0, 1, units, batch*units - 1, batch*units + 1, batch*units + 6,
		2 * batch * units} {
		h0 := make([]float32, length)
		sentence := fmt.Sprintf("h0: has %d elements, must have %d", length, batch*units)
		refused(t, g.Calibrate(c, x, h0), StatusBufferSize, sentence)
		refused(t, g.RunFloat(c, x, h0, y), StatusBufferSize, sentence)
	}
	must(t, g.Calibrate(c, x, make([]float32, batch*units)))
	must(t, g.Freeze(c))
	state, err := g.NewState(c, batch)
	must(t, err)
	for _, length := range []int{0, batch*units - 1, batch*units + 1} {
		refused(t, state.Write(c, make([]float32, length)), StatusBufferSize, "h: has")
		refused(t, state.Read(c, make([]float32, length)), StatusBufferSize, "h: has")
	}
}

// counted is a context whose memory counting counts.
func counted(t *testing.T) *Context {
	t.Helper()
	c, err := NewContext(Options{Threads: 1, allocator: counting.Allocator()})
	must(t, err)
	return c
}

// TestCloseGivesBack: each kind of handle in turn, with no finalizer to do it later.
func TestCloseGivesBack(t *testing.T) {
	start := counting.Live()
	c := counted(t)
	context := counting.Live()
	if context <= start {
		t.Fatal("the allocator is not asked")
	}
	desc := Desc{Format: FormatF32, Shape: []int64{4, 4}}
	for name, make := range map[string]func() interface{ Close() error }{
		"NewTensor": func() interface{ Close() error } {
			tensor, err := NewTensor(c, desc)
			must(t, err)
			return tensor
		},
		"FromSlice": func() interface{ Close() error } { return dense(t, c, weights(16, 1), 4, 4) },
		"NewGru":    func() interface{ Close() error } { return trained(t, c, W8H16) },
		"LoadGru": func() interface{ Close() error } {
			image, err := frozen(t, oneThread(t), W8H16).Save()
			must(t, err)
			g, err := LoadGru(c, image)
			must(t, err)
			return g
		},
		"NewState": func() interface{ Close() error } {
			image, err := frozen(t, oneThread(t), W8H16).Save()
			must(t, err)
			g, err := LoadGru(c, image)
			must(t, err)
			defer g.Close() // the state keeps it until it goes
			state, err := g.NewState(c, 2)
			must(t, err)
			return state
		},
	} {
		made := make()
		if counting.Live() <= context {
			t.Errorf("%s: allocates nothing", name)
		}
		must(t, made.Close())
		if live := counting.Live(); live != context {
			t.Errorf("%s: Close leaves %d blocks", name, live-context)
		}
		must(t, made.Close())
		runtime.KeepAlive(made)
	}
	must(t, c.Close())
	if live := counting.Live(); live != start {
		t.Errorf("Close of a context leaves %d blocks", live-start)
	}
	runtime.KeepAlive(c)
}

// TestRefusalsKeepNothing: what was made before a call is refused is given back.
func TestRefusalsKeepNothing(t *testing.T) {
	c := counted(t)
	defer c.Close()
	start := counting.Live()
	desc := Desc{Format: FormatF32, Shape: []int64{4, 4}}
	for i := 0; i < 3; i++ {
		_, err := FromSlice(c, desc, make([]float32, 15))
		refused(t, err, StatusBufferSize, "")
		_, err = LoadGru(c, make([]byte, 64))
		refused(t, err, StatusCorrupt, "")
		g := frozen(t, oneThread(t), W8A8)
		model, err := g.Model()
		must(t, err)
		model.Shift[GruH] = 99
		_, err = NewGruFromModel(c, model)
		refused(t, err, StatusArgument, "")
		if live := counting.Live(); live != start {
			t.Fatalf("refused calls left %d blocks", live-start)
		}
	}
}
