// Loads a layer of a quantized checkpoint and multiplies by it.
//
//	go run ./examples/load_and_multiply model.safetensors [layer]
package main

import (
	"fmt"
	"log"
	"os"

	"qk"
	"qk/checkpoint"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// choose is the layer of that name, or the first quantized one that qk can load.
func choose(model *checkpoint.Checkpoint, name string) checkpoint.Layer {
	if name != "" {
		layer, err := model.Layer(name)
		check(err)
		return layer
	}
	for _, layer := range model.Layers() {
		if layer.Err == nil && layer.Dialect != checkpoint.Dense {
			return layer
		}
	}
	log.Fatal("no quantized layer that qk can load")
	return checkpoint.Layer{}
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: load_and_multiply model.safetensors [layer]")
		os.Exit(2)
	}
	c, err := qk.NewContext(qk.Options{})
	check(err)
	defer c.Close()
	model, err := checkpoint.Open(os.Args[1])
	check(err)
	defer model.Close()
	layer := choose(model, append(os.Args, "")[2])
	w, bias, err := model.Load(c, layer.Name)
	check(err)
	desc, err := w.Desc()
	check(err)
	n, k := desc.Shape[0], desc.Shape[1]
	fmt.Printf("%s: %v, %d x %d\n", layer.Name, layer.Dialect, n, k)

	ones := make([]float32, k)
	for i := range ones {
		ones[i] = 1
	}
	x, err := qk.FromSlice(c, qk.Desc{Format: qk.FormatF32, Shape: []int64{1, k}}, ones)
	check(err)
	y, err := qk.NewTensor(c, qk.Desc{Format: qk.FormatF32, Shape: []int64{1, n}})
	check(err)
	check(c.Linear(x, w, bias, y))
	results := make([]float32, n)
	check(qk.Download(c, y, qk.PlaneData, results))
	for i := 0; i < len(results) && i < 4; i++ {
		fmt.Printf("y[%d] = %g\n", i, results[i])
	}
}
