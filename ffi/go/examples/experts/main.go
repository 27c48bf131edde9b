// A mixture of experts as gpt-oss has it: two products for a token and the experts it is for.
//
//	go run ./examples/experts FOLDER GATE_UP DOWN
//
// GATE_UP and DOWN are names of Checkpoint.ExpertLayers.
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

func floats(c *qk.Context, values []float32, shape ...int64) *qk.Tensor {
	made, err := qk.FromSlice(c, qk.Desc{Format: qk.FormatF32, Shape: shape}, values)
	check(err)
	return made
}

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: experts FOLDER GATE_UP DOWN")
		os.Exit(2)
	}
	c, err := qk.NewContext(qk.Options{})
	check(err)
	defer c.Close()
	model, err := checkpoint.Open(os.Args[1])
	check(err)
	defer model.Close()
	gateUp, gateUpBias, err := model.LoadExperts(c, os.Args[2], "")
	check(err)
	down, downBias, err := model.LoadExperts(c, os.Args[3], "")
	check(err)
	first, err := gateUp.Desc()
	check(err)
	second, err := down.Desc()
	check(err)
	k, inner := first.Shape[2], second.Shape[2]
	if second.Shape[1] != k {
		log.Fatal("GATE_UP and DOWN are not the two of one mixture")
	}

	// What a router gives: two experts for each token, and their shares.
	chosen, err := qk.FromSlice(c, qk.Desc{Format: qk.FormatI32, Shape: []int64{1, 2}}, []int32{0, 1})
	check(err)
	shares := floats(c, []float32{0.75, 0.25}, 1, 2)

	token := make([]float32, k)
	for i := range token {
		token[i] = float32(i%7) * 0.125
	}
	x, middle := floats(c, token, 1, k), floats(c, make([]float32, 2*inner), 1, 2, inner)
	y := floats(c, make([]float32, k), 1, k)
	check(c.Multiply(
		qk.Product{X: x, W: gateUp, Bias: gateUpBias, Y: middle, Experts: &qk.Experts{
			Expert: chosen, Activation: qk.ActivationSwiGLUClamped, Interleaved: true, Limit: 7,
			Alpha: 1.702}},
		qk.Product{X: middle, W: down, Bias: downBias, Y: y, Experts: &qk.Experts{
			Expert: chosen, Weight: shares}}))
	results := make([]float32, k)
	check(qk.Download(c, y, qk.PlaneData, results))
	for i := 0; i < len(results) && i < 4; i++ {
		fmt.Printf("y[%d] = %g\n", i, results[i])
	}
}
