package checkpoint

import (
	"bytes"
	"testing"

	"qk"
)

func valuesOf(t *testing.T, c *qk.Context, w *qk.Tensor) []byte {
	t.Helper()
	desc, err := w.Desc()
	must(t, err)
	dense, err := qk.NewTensor(c, qk.Desc{Format: qk.FormatF32, Shape: desc.Shape})
	must(t, err)
	must(t, c.Dequantize(w, dense))
	return downloaded(t, c, dense, qk.PlaneData)
}

func TestExpertsOfAFileAreOneWeight(t *testing.T) {
	c := newContext(t)
	file := openGolden(t, "gpt_oss")
	layers := file.ExpertLayers()
	if len(layers) != 2 {
		t.Fatal(layers)
	}
	for _, layer := range layers {
		w, bias, err := file.LoadExperts(c, layer.Name, "")
		must(t, err)
		shape, err := w.Desc()
		must(t, err)
		ofBias, err := bias.Desc()
		must(t, err)
		if len(shape.Shape) != 3 || shape.Shape[0] != 3 || len(ofBias.Shape) != 2 ||
			ofBias.Shape[1] != shape.Shape[1] || shape.Shape[2] != layer.Desc.Shape[2] {
			t.Errorf("%v, bias %v", shape, ofBias)
		}
		whole, _, err := file.Load(c, layer.Name)
		must(t, err)
		inPlace, _, err := file.LoadExpertsInPlace(c, layer.Name)
		must(t, err)
		values := valuesOf(t, c, w)
		if !bytes.Equal(values, valuesOf(t, c, whole)) ||
			!bytes.Equal(values, valuesOf(t, c, inPlace)) {
			t.Errorf("%s has other bits", layer.Name)
		}
	}
}

func TestTwoProjectionsAreGateAndUp(t *testing.T) {
	c := newContext(t)
	file := openGolden(t, "deepseek_v4")
	const name = "layers.0.ffn.experts.*.w1"
	layer, err := file.ExpertLayer(name)
	must(t, err)
	both, bias, err := file.LoadExperts(c, name, name)
	must(t, err)
	one, _, err := file.Load(c, "layers.0.ffn.experts.0.w1")
	must(t, err)
	if layer.Err != nil || layer.Desc.Shape[1] != 13 || bias != nil ||
		!bytes.Equal(valuesOf(t, c, both), bytes.Repeat(valuesOf(t, c, one), 2)) {
		t.Errorf("%+v, bias %v", layer, bias)
	}
}

func TestWhatHasNoExpertsSaysSo(t *testing.T) {
	c := newContext(t)
	file := openGolden(t, "gpt_oss")
	_, err := file.ExpertLayer("no.such")
	refused(t, err, qk.StatusArgument, "no such layer")
	_, _, err = file.LoadExperts(c, "no.such", "")
	refused(t, err, qk.StatusArgument, "no.such")
	_, _, err = file.LoadExperts(c, "model.layers.0.mlp.experts.gate_up_proj", "a\x00b")
	refused(t, err, qk.StatusArgument, "up: has a zero byte")
	if layers := openGolden(t, "bnb_nf4").ExpertLayers(); len(layers) != 0 {
		t.Error(layers)
	}
}
