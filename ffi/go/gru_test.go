package qk

import (
	"bytes"
	"reflect"
	"sync"
	"testing"
)

const (
	inputs, units, steps, batch = 5, 7, 40, 2
)

func trained(t *testing.T, c *Context, preset GruPreset) *Gru {
	t.Helper()
	g, err := NewGru(c, GruConfig{InputSize: inputs, HiddenSize: units, Preset: preset,
		Calibration: CalibrateMSE, Flags: UniformTables}, GruWeights{weights(3*units*inputs, 1),
		weights(3*units*units, 2), weights(3*units, 3), weights(3*units, 4)})
	must(t, err)
	return g
}

func signal(t *testing.T, c *Context, values []float32) *Tensor {
	return dense(t, c, values, int64(len(values)/(batch*inputs)), batch, inputs)
}

func frozen(t *testing.T, c *Context, preset GruPreset) *Gru {
	t.Helper()
	g := trained(t, c, preset)
	must(t, g.Calibrate(c, signal(t, c, weights(steps*batch*inputs, 5)), nil))
	must(t, g.Freeze(c))
	return g
}

// stream is y of all steps, run in calls of chunk steps.
func stream(t *testing.T, c *Context, g *Gru, data []float32, chunk int) []float32 {
	state, err := g.NewState(c, batch)
	must(t, err)
	defer state.Close()
	var all []float32
	for at := 0; at < steps; at += chunk {
		end := at + chunk
		if end > steps {
			end = steps
		}
		x := signal(t, c, data[at*batch*inputs:end*batch*inputs])
		y := empty(t, c, int64(end-at), batch, units)
		must(t, g.Run(c, state, x, y))
		all = append(all, values(t, c, y, (end-at)*batch*units)...)
	}
	return all
}

func TestStreamingEqualsOneCallAndSurvivesSaving(t *testing.T) {
	c := oneThread(t)
	data := weights(steps*batch*inputs, 6)
	for _, preset := range []GruPreset{W8A8, W8H16, W16A16} {
		g := frozen(t, c, preset)
		whole := stream(t, c, g, data, steps)
		image, err := g.Save()
		must(t, err)
		loaded, err := LoadGru(c, image)
		must(t, err)
		for name, got := range map[string][]float32{"one step": stream(t, c, g, data, 1),
			"seven": stream(t, c, g, data, 7), "loaded": stream(t, c, loaded, data, steps)} {
			if !reflect.DeepEqual(got, whole) {
				t.Errorf("preset %d, %s: other bits", preset, name)
			}
		}
		if reflect.DeepEqual(whole, make([]float32, len(whole))) {
			t.Error("all zeros")
		}
	}
}

func TestIntegersOutAndIn(t *testing.T) {
	c := oneThread(t)
	for _, preset := range []GruPreset{W8A8, W8H16, W16A16} {
		g := frozen(t, c, preset)
		model, err := g.Model()
		must(t, err)
		again, err := NewGruFromModel(c, model)
		must(t, err)
		copied, err := again.Model()
		must(t, err)
		if !reflect.DeepEqual(model, copied) {
			t.Errorf("preset %d: the model came back changed", preset)
		}
		one, err := g.Save()
		must(t, err)
		two, err := again.Save()
		must(t, err)
		if !bytes.Equal(one, two) {
			t.Errorf("preset %d: other bytes", preset)
		}
		model.W16 = append([]int16{}, model.W16...) // empty instead of nil means absent as well
		model.R16 = append([]int16{}, model.R16...)
		again, err = NewGruFromModel(c, model)
		must(t, err)
		two, err = again.Save()
		must(t, err)
		if !bytes.Equal(one, two) {
			t.Errorf("preset %d: other bytes where absent weights are empty", preset)
		}
		shift, zero, err := g.Scale(GruX, 0)
		must(t, err)
		if shift != model.Shift[GruX] || zero != model.ZeroPoint[GruX] {
			t.Error("Scale and Model differ")
		}
		_, _, err = g.Scale(GruX, 1)
		refused(t, err, StatusArgument, "")
		model.BW = model.BW[1:]
		_, err = NewGruFromModel(c, model)
		refused(t, err, StatusBufferSize, "BW: has 20 elements, must have 21")
		model.BW = copied.BW
		model.W8, model.W16 = nil, nil
		_, err = NewGruFromModel(c, model)
		refused(t, err, StatusBufferSize, "must have 105")
		copied.Shift[GruH] = 99
		_, err = NewGruFromModel(c, copied)
		refused(t, err, StatusArgument, "")
	}
}

func TestGatesStateAndFloat(t *testing.T) {
	c := oneThread(t)
	g := trained(t, c, W16A16)
	refused(t, g.Freeze(c), StatusState, "")
	refused(t, g.SetQuant(GruW, GruQuant{Bits: 40}), StatusArgument, "")
	must(t, g.SetQuant(GruW, GruQuant{Bits: 12, IsSymmetric: true, Granularity: 2}))
	x := signal(t, c, weights(steps*batch*inputs, 5))
	refused(t, g.Calibrate(c, x, make([]float32, 3)), StatusBufferSize, "h0: has 3")
	must(t, g.Calibrate(c, x, make([]float32, batch*units)))
	exact := empty(t, c, steps, batch, units)
	must(t, g.RunFloat(c, x, nil, exact))
	must(t, g.Freeze(c))
	refused(t, g.RunFloat(c, x, nil, exact), StatusState, "")

	state, err := g.NewState(c, batch)
	must(t, err)
	y, gates := empty(t, c, steps, batch, units), empty(t, c, steps, batch, 4*units)
	must(t, g.RunGates(c, state, x, y, gates))
	var noise, power float64
	wanted, got := values(t, c, exact, steps*batch*units), values(t, c, y, steps*batch*units)
	for i := range wanted {
		noise += float64(wanted[i]-got[i]) * float64(wanted[i]-got[i])
		power += float64(wanted[i]) * float64(wanted[i])
	}
	// How exact it is, tests/gru measures; an array or gate in another's place would leave an error of
	// the size of the signal.
	if noise > power/100 {
		t.Errorf("noise %g, power %g", noise, power)
	}
	for i, gate := range values(t, c, gates, steps*batch*4*units) {
		if i%(4*units) < 2*units && (gate < 0 || gate > 1) {
			t.Fatalf("gate %d is %g", i, gate)
		}
	}
	h, again := make([]float32, batch*units), make([]float32, batch*units)
	must(t, state.Read(c, h))
	if !reflect.DeepEqual(h, got[(steps-1)*batch*units:]) {
		t.Error("the state is not the last y")
	}
	must(t, state.Reset(c))
	must(t, state.Write(c, h))
	must(t, state.Read(c, again))
	if !reflect.DeepEqual(h, again) {
		t.Error("the state came back changed")
	}
	refused(t, state.Read(c, h[1:]), StatusBufferSize, "h: has 13")
	_, err = g.Workspace(c, batch, steps)
	must(t, err)
	must(t, g.Close()) // the state keeps it
	must(t, state.Reset(c))
}

func TestGoroutinesShareAGru(t *testing.T) {
	c := oneThread(t)
	g := frozen(t, c, W8H16)
	data := weights(steps*batch*inputs, 6)
	expected := stream(t, c, g, data, steps)
	contexts := make([]*Context, 4)
	for i := range contexts {
		contexts[i] = oneThread(t)
	}
	var group sync.WaitGroup
	results := make([][]float32, len(contexts))
	for i := range contexts {
		group.Add(1)
		go func(i int) {
			defer group.Done()
			x := signal(t, contexts[i], data)
			y := empty(t, contexts[i], steps, batch, units)
			state, err := g.NewState(contexts[i], batch)
			if err == nil {
				err = g.Run(contexts[i], state, x, y)
			}
			results[i] = make([]float32, len(expected))
			if err == nil {
				err = Download(contexts[i], y, PlaneData, results[i])
			}
			if err != nil {
				t.Error(err)
			}
		}(i)
	}
	group.Wait()
	for i := range results {
		if !reflect.DeepEqual(results[i], expected) {
			t.Errorf("goroutine %d: other bits", i)
		}
	}
}

func TestLengthsAreCheckedBeforeAnythingIsRead(t *testing.T) {
	c := oneThread(t)
	config := GruConfig{InputSize: inputs, HiddenSize: units}
	good := GruWeights{WIH: weights(3*units*inputs, 1), WHH: weights(3*units*units, 2)}
	short := good
	short.WIH = short.WIH[1:]
	_, err := NewGru(c, config, short)
	refused(t, err, StatusBufferSize, "WIH: has 104 elements, must have 105")
	short = good
	short.BIH = []float32{0}
	_, err = NewGru(c, config, short)
	refused(t, err, StatusBufferSize, "BIH: has 1 elements, must have 21")
	config.HiddenSize = -1
	_, err = NewGru(c, config, good)
	refused(t, err, StatusShape, "HiddenSize")
}
