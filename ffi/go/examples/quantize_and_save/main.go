// Quantizes a weight matrix to NF4 with nested scales, writes it as bitsandbytes does, loads it
// again and shows what it cost.
//
//	go run ./examples/quantize_and_save out.safetensors
package main

import (
	"fmt"
	"log"
	"math"
	"math/rand"
	"os"

	"qk"
	"qk/checkpoint"
)

const (
	rows, columns = 96, 256
	name          = "model.layers.0.mlp.up_proj"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: quantize_and_save out.safetensors")
		os.Exit(2)
	}
	c, err := qk.NewContext(qk.Options{})
	check(err)
	defer c.Close()
	weights := make([]float32, rows*columns)
	for i := range weights { // heavy tails, as weights have them
		weights[i] = (2*rand.Float32() - 1) * (2*rand.Float32() - 1)
	}
	plain := qk.Desc{Format: qk.FormatF32, Shape: []int64{rows, columns}}
	dense, err := qk.FromSlice(c, plain, weights)
	check(err)

	// 64 codes share a scale; scales are 8-bit codes of a table of 256 values.
	desc := qk.Desc{Format: qk.FormatNF4, ScaleFormat: qk.FormatLUT8, GroupSize: 64,
		Layout: qk.LayoutRowHigh, Shape: plain.Shape}
	nf4, err := qk.NewTensor(c, desc)
	check(err)
	table, err := qk.DynamicTable()
	check(err)
	check(qk.Upload(c, nf4, qk.PlaneScaleCode, table))
	check(c.Quantize(dense, nf4))

	writer, err := checkpoint.NewWriter(os.Args[1])
	check(err)
	defer writer.Close()
	check(writer.Metadata("format", "pt"))
	check(writer.DeclareLayer(checkpoint.BitsAndBytes, name, desc, qk.FormatF32))
	check(writer.WriteLayer(c, name, nf4))
	check(writer.Finish())

	model, err := checkpoint.Open(os.Args[1])
	check(err)
	layer, err := model.Layer(name)
	check(err)
	loaded, _, err := model.Load(c, name)
	check(err)
	back, err := qk.NewTensor(c, plain)
	check(err)
	check(c.Dequantize(loaded, back))
	decoded := make([]float32, len(weights))
	check(qk.Download(c, back, qk.PlaneData, decoded))

	worst := 0.0
	for i := range weights {
		worst = math.Max(worst, math.Abs(float64(weights[i]-decoded[i])))
	}
	fmt.Printf("%d x %d weights: %d bytes as f32, %d in %s\n", rows, columns, 4*len(weights),
		layer.Bytes, os.Args[1])
	fmt.Printf("worst error %.4f\n", worst)
	if worst > 0.16 { // half of the widest gaps: .152 NF4, .007 scales
		log.Fatal("the weights did not come back")
	}
}
