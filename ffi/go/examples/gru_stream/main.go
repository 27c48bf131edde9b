// Quantizes a trained GRU, saves and loads it, and streams a signal through it step by step.
//
//	go run ./examples/gru_stream denoiser.safetensors calibration.f32 test.f32
package main

import (
	"encoding/binary"
	"fmt"
	"log"
	"math"
	"os"

	"qk"
	"qk/checkpoint"
)

const c, h = 16, 64

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func floats(bytes []byte) []float32 {
	values := make([]float32, len(bytes)/4)
	for i := range values {
		values[i] = math.Float32frombits(binary.LittleEndian.Uint32(bytes[4*i:]))
	}
	return values
}

func readFloats(path string) []float32 {
	bytes, err := os.ReadFile(path)
	check(err)
	return floats(bytes)
}

func weights(file *checkpoint.Checkpoint, name string) []float32 {
	tensor, err := file.Tensor(name)
	check(err)
	return floats(tensor.Data)
}

// sequence is a tensor [t,1,size] in memory that Go can read and write.
func sequence(context *qk.Context, size int, values []float32) (*qk.Tensor, []float32) {
	memory, err := qk.NewMemory(4 * len(values))
	check(err)
	view := qk.View[float32](memory)
	copy(view, values)
	tensor, err := qk.WrapTensor(context, qk.Desc{Format: qk.FormatF32,
		Shape: []int64{int64(len(values) / size), 1, int64(size)}}, memory)
	check(err)
	return tensor, view
}

// run is y of all of x, in calls of this many steps.
func run(context *qk.Context, gru *qk.Gru, x []float32, steps int) []float32 {
	state, err := gru.NewState(context, 1)
	check(err)
	defer state.Close()
	in, inView := sequence(context, c, x[:steps*c])
	out, outView := sequence(context, h, make([]float32, steps*h))
	defer in.Close() // which also keeps the views' memory until then
	defer out.Close()
	var y []float32
	for at := 0; at < len(x); at += steps * c {
		copy(inView, x[at:])
		check(gru.Run(context, state, in, out))
		y = append(y, outView...)
	}
	return y
}

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: gru_stream WEIGHTS CALIBRATION TEST")
		os.Exit(2)
	}
	context, err := qk.NewContext(qk.Options{Threads: 1, WorkspaceBytes: 1 << 20})
	check(err)
	file, err := checkpoint.Open(os.Args[1])
	check(err)
	learn, x := readFloats(os.Args[2]), readFloats(os.Args[3])
	steps := len(x) / c

	trained, err := qk.NewGru(context, qk.GruConfig{InputSize: c, HiddenSize: h, Preset: qk.W8H16},
		qk.GruWeights{WIH: weights(file, "gru.weight_ih_l0"), WHH: weights(file, "gru.weight_hh_l0"),
			BIH: weights(file, "gru.bias_ih_l0"), BHH: weights(file, "gru.bias_hh_l0")})
	check(err)
	data, _ := sequence(context, c, learn)
	check(trained.Calibrate(context, data, nil)) // what ranges do values take?
	data, _ = sequence(context, c, x)
	truth, exact := sequence(context, h, make([]float32, steps*h))
	check(trained.RunFloat(context, data, nil, truth)) // to compare with
	check(trained.Freeze(context))                     // integers from here on
	image, err := trained.Save()
	check(err)
	gru, err := qk.LoadGru(context, image)
	check(err)

	y, whole := run(context, gru, x, 1), run(context, gru, x, steps)
	same := true
	var signal, noise float64
	for i := range exact {
		same = same && y[i] == whole[i]
		signal += float64(exact[i]) * float64(exact[i])
		noise += (float64(exact[i]) - float64(y[i])) * (float64(exact[i]) - float64(y[i]))
	}
	truth.Close()
	sqnr := 10 * math.Log10(signal/noise)
	fmt.Printf("%d inputs, %d units: %d bytes\n", c, h, len(image))
	fmt.Printf("SQNR against float: %.2f dB\n", sqnr)
	fmt.Printf("%d calls of one step and one call of %d: equal bits: %t\n", steps, steps, same)
	if !same || sqnr < 29.5 { // what W8H16 must reach on any network
		log.Fatal("not what a GRU of this kind must give")
	}
}
