package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"qk"
)

const golden = "../../../tests/golden/data"

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func refused(t *testing.T, err error, status qk.Status, sentence string) {
	t.Helper()
	var why *qk.Error
	if !errors.As(err, &why) || why.Status != status || !strings.Contains(why.Message, sentence) {
		t.Fatalf("%v, expected status %d and %q", err, status, sentence)
	}
}

func newContext(t *testing.T) *qk.Context {
	t.Helper()
	c, err := qk.NewContext(qk.Options{Threads: 1})
	must(t, err)
	return c
}

func openGolden(t *testing.T, path string) *Checkpoint {
	t.Helper()
	checkpoint, err := Open(filepath.Join(golden, path))
	must(t, err)
	return checkpoint
}

func downloaded(t *testing.T, c *qk.Context, tensor *qk.Tensor, plane qk.Plane) []byte {
	t.Helper()
	desc, err := tensor.Desc()
	must(t, err)
	size, err := desc.PlaneBytes(plane)
	must(t, err)
	host := make([]byte, size)
	must(t, qk.Download(c, tensor, plane, host))
	return host
}

func compare(t *testing.T, c *qk.Context, truth *Checkpoint, layer string, w *qk.Tensor) {
	t.Helper()
	expected, err := truth.Tensor(layer + ".weight")
	must(t, err)
	dense, err := qk.NewTensor(c, qk.Desc{Format: expected.Dtype.Format(), Shape: expected.Shape})
	must(t, err)
	must(t, c.Dequantize(w, dense))
	if !bytes.Equal(downloaded(t, c, dense, qk.PlaneData), expected.Data) {
		t.Errorf("%s has other bits", layer)
	}
}

// TestGoldenLayers: what loads has the bits of the package that wrote it.
func TestGoldenLayers(t *testing.T) {
	c := newContext(t)
	folders := map[string]Dialect{
		"awq_gemm_channel": AWQGemm, "awq_gemm_g128": AWQGemm, "awq_gemm_g64": AWQGemm,
		"awq_gemv_g128": AWQGemv, "awq_gemv_g32": AWQGemv, "awq_gemv_g64": AWQGemv,
		"bnb_fp4": BitsAndBytes, "bnb_fp4_nested": BitsAndBytes, "bnb_nf4": BitsAndBytes,
		"bnb_nf4_nested": BitsAndBytes, "bnb_nf4_nested_bf16_storage": BitsAndBytes,
		"ct_int4_asym_channel": CompressedTensors, "ct_int4_asym_g32": CompressedTensors,
		"ct_int4_sym_channel": CompressedTensors, "ct_int4_sym_g128": CompressedTensors,
		"ct_int4_sym_g32": CompressedTensors, "gptq_v1_asym_g32": GPTQV1,
		"gptq_v1_asym_g64": GPTQV1, "gptq_v1_sym_g128": GPTQV1, "gptq_v2_asym_g128": GPTQV2,
		"gptq_v2_sym_g32": GPTQV2,
	}
	for folder, dialect := range folders {
		truth, mapped := openGolden(t, folder+"/truth.safetensors"), openGolden(t, folder)
		copied, err := Read(filepath.Join(golden, folder))
		must(t, err)
		count := 0
		for _, layer := range copied.Layers() {
			if layer.Dialect == Dense {
				continue
			}
			if layer.Dialect != dialect || layer.Err != nil {
				t.Errorf("%s: %s is %v, %v", folder, layer.Name, layer.Dialect, layer.Err)
			}
			note, err := copied.VerifyLayer(layer.Name)
			if err != nil || note != "" {
				t.Error(note, err)
			}
			w, bias, err := copied.Load(c, layer.Name)
			must(t, err)
			if (bias != nil) != layer.HasBias {
				t.Errorf("%s: bias %v", layer.Name, bias)
			}
			compare(t, c, truth, layer.Name, w)
			w, _, err = mapped.LoadInPlace(c, layer.Name)
			must(t, err)
			compare(t, c, truth, layer.Name, w)
			count++
		}
		if count == 0 {
			t.Errorf("%s: no layers", folder)
		}
	}
}

func TestWhatCannotBeLoadedSaysWhy(t *testing.T) {
	c := newContext(t)
	for folder, reason := range map[string]string{"awq_gemv_fast_refused": "gemv_fast",
		"awq_marlin_refused": "marlin"} {
		checkpoint := openGolden(t, folder)
		for _, layer := range checkpoint.Layers() {
			refused(t, layer.Err, qk.StatusUnsupported, reason)
			_, _, err := checkpoint.Load(c, layer.Name)
			refused(t, err, qk.StatusUnsupported, reason)
		}
	}
}

func TestStoredBytes(t *testing.T) {
	_, err := Open(filepath.Join(golden, "no_such_folder"))
	refused(t, err, qk.StatusFile, "no_such_folder")
	_, err = Open("a\x00b")
	refused(t, err, qk.StatusArgument, "zero byte")
	_, err = FromBytes([]byte("not a safetensors file"), "")
	refused(t, err, qk.StatusCorrupt, "memory")
	_, err = FromBytes(nil, "")
	refused(t, err, qk.StatusCorrupt, "memory")
	dense := openGolden(t, "dense")
	_, _, err = dense.Load(newContext(t), "nothing")
	refused(t, err, qk.StatusArgument, "nothing")
	_, err = dense.Tensor("nothing")
	refused(t, err, qk.StatusArgument, "nothing")
	_, err = dense.Layer("nothing")
	refused(t, err, qk.StatusArgument, "nothing")
}

// oracle quantizes what stem ("x.nf4.bs64") names and compares with bitsandbytes' bytes.
func oracle(t *testing.T, c *qk.Context, inputs, expected *Checkpoint, stem string, nested bool) {
	t.Helper()
	parts := strings.Split(stem, ".")
	block, err := strconv.Atoi(strings.TrimPrefix(parts[len(parts)-1], "bs"))
	must(t, err)
	file, err := inputs.Tensor(strings.Join(parts[:len(parts)-2], "."))
	must(t, err)
	x, err := qk.FromSlice(c, qk.Desc{Format: file.Dtype.Format(), Shape: file.Shape}, file.Data)
	must(t, err)
	desc := qk.Desc{Format: qk.FormatLUT8, ScaleFormat: qk.FormatF32, GroupSize: block,
		Shape: file.Shape}
	data := ".data"
	if kind := parts[len(parts)-2]; kind != "8bit" {
		desc.Layout, desc.Format, data = qk.LayoutRowHigh, qk.FormatNF4, ".packed"
		if kind == "fp4" {
			desc.Format = qk.FormatFP4BNB
		}
	}
	planes := map[qk.Plane]string{qk.PlaneData: data, qk.PlaneScale: ".absmax"}
	if nested {
		desc.ScaleFormat = qk.FormatLUT8
		planes = map[qk.Plane]string{qk.PlaneScaleBias: ".nested.offset",
			qk.PlaneScale2: ".nested.nested_absmax", qk.PlaneScale: ".nested.absmax"}
	}
	q, err := qk.NewTensor(c, desc)
	must(t, err)
	table, err := qk.DynamicTable()
	must(t, err)
	if desc.Format == qk.FormatLUT8 {
		must(t, qk.Upload(c, q, qk.PlaneTable, table))
	}
	if nested {
		must(t, qk.Upload(c, q, qk.PlaneScaleCode, table))
	}
	must(t, c.Quantize(x, q))
	for plane, suffix := range planes {
		truth, err := expected.Tensor(stem + suffix)
		must(t, err)
		if !bytes.Equal(downloaded(t, c, q, plane), truth.Data) {
			t.Errorf("%s%s has other bytes", stem, suffix)
		}
	}
}

func TestGoldenQuantize(t *testing.T) {
	c := newContext(t)
	inputs := openGolden(t, "bnb_quantize_oracle/inputs.safetensors")
	expected := openGolden(t, "bnb_quantize_oracle/expected.safetensors")
	cases, nested := 0, 0
	for _, name := range expected.Names() {
		for _, suffix := range []string{".nested.offset", ".packed", ".data"} {
			if stem := strings.TrimSuffix(name, suffix); stem != name {
				oracle(t, c, inputs, expected, stem, suffix == ".nested.offset")
				if cases++; suffix == ".nested.offset" {
					nested++
				}
			}
		}
	}
	if cases < 100 || nested < 20 {
		t.Fatalf("%d cases, %d nested", cases, nested)
	}
	table, err := qk.DynamicTable()
	must(t, err)
	theirs, err := expected.Tensor("dynamic_map")
	must(t, err)
	for i, value := range table {
		if math.Float32bits(value) != binary.LittleEndian.Uint32(theirs.Data[4*i:]) {
			t.Fatalf("table[%d] is %g", i, value)
		}
	}
}

func TestWriter(t *testing.T) {
	c := newContext(t)
	path := filepath.Join(t.TempDir(), "model.safetensors")
	w, err := NewWriter(path)
	must(t, err)
	must(t, w.Metadata("format", "pt"))
	must(t, w.Declare("counts", I32, 2, 3))
	must(t, w.Declare("nothing", U8, 0))
	refused(t, w.Declare("counts", I32, 6), qk.StatusArgument, "counts")
	desc := qk.Desc{Format: qk.FormatU4Affine, ScaleFormat: qk.FormatBF16, GroupSize: 32,
		Layout: qk.LayoutWord, Flags: qk.Symmetric, Shape: []int64{8, 64}}
	must(t, w.DeclareLayer(CompressedTensors, "layer", desc, qk.FormatBF16))
	data := make([]byte, 24)
	data[5] = 7
	must(t, w.Write("counts", data[:10]))
	refused(t, w.Write("counts", data), qk.StatusBufferSize, "counts")
	must(t, w.Write("counts", data[10:]))
	must(t, w.Write("nothing", nil))
	refused(t, w.Finish(), qk.StatusState, "layer")
	values := make([]float32, 8*64)
	for i := range values {
		values[i] = float32(i%15-7) / 8
	}
	x, err := qk.FromSlice(c, qk.Desc{Format: qk.FormatF32, Shape: []int64{8, 64}}, values)
	must(t, err)
	q, err := qk.NewTensor(c, desc)
	must(t, err)
	must(t, c.Quantize(x, q))
	must(t, w.WriteLayer(c, "layer", q))
	must(t, w.Finish())
	must(t, w.Close())
	config := filepath.Join(filepath.Dir(path), "config.json")
	must(t, WriteConfig(nil, config, CompressedTensors, desc, qk.FormatBF16, []string{"lm_head"}))

	checkpoint, err := Read(filepath.Dir(path))
	must(t, err)
	layer, err := checkpoint.Layer("layer")
	must(t, err)
	if layer.Dialect != CompressedTensors || layer.Err != nil {
		t.Fatal(layer)
	}
	loaded, _, err := checkpoint.Load(c, "layer")
	must(t, err)
	for _, plane := range []qk.Plane{qk.PlaneData, qk.PlaneScale} {
		if !bytes.Equal(downloaded(t, c, q, plane), downloaded(t, c, loaded, plane)) {
			t.Errorf("plane %d came back changed", plane)
		}
	}
	counts, err := checkpoint.Tensor("counts")
	must(t, err)
	if !bytes.Equal(counts.Data, data) || counts.Shape[1] != 3 || counts.DtypeName != "I32" {
		t.Error(counts)
	}
	if pairs := checkpoint.Metadata(); len(pairs) != 1 || pairs[0] != [2]string{"format", "pt"} {
		t.Error(pairs)
	}
	file, err := os.ReadFile(path)
	must(t, err)
	text, err := os.ReadFile(config)
	must(t, err)
	memory, err := FromBytes(file, string(text))
	must(t, err)
	if len(memory.Layers()) != len(checkpoint.Layers()) {
		t.Error("from memory: other layers")
	}
	_, err = NewWriter(filepath.Join(t.TempDir(), "no", "folder"))
	refused(t, err, qk.StatusFile, "folder")
}
