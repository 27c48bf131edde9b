package qk

import (
	"reflect"
	"testing"
)

func traced(t *testing.T, trace func(Trace)) *Context {
	t.Helper()
	c, err := NewContext(Options{Threads: 1, Trace: trace})
	must(t, err)
	return c
}

func TestEachKernelIsToldOnce(t *testing.T) {
	var told []Trace
	c := traced(t, func(call Trace) { told = append(told, call) })
	w := packed(t, c, 64, 128) // quantized, repacked
	x, y := dense(t, c, weights(3*128, 5), 3, 128), empty(t, c, 3, 64)
	must(t, c.Linear(x, w, nil, y))
	plan, err := c.Explain(Product{X: x, W: w, Y: y})
	must(t, err)
	refused(t, c.Linear(x, w, nil, empty(t, c, 3, 63)), StatusShape, "") // no kernel runs

	expected := []Trace{{Operation: "quantize", Shape: []int64{64, 128}},
		{Operation: "repack", Shape: []int64{64, 128}},
		{Operation: "multiply", Shape: []int64{3, 64, 128}}}
	if len(told) != len(expected) || told[2].Kernel != plan.Kernel {
		t.Fatalf("told %+v, the plan is %+v", told, plan)
	}
	for i, call := range told {
		if call.Kernel == "" || call.Seconds < 0 {
			t.Errorf("%+v", call)
		}
		call.Kernel, call.Seconds = "", 0
		if !reflect.DeepEqual(call, expected[i]) {
			t.Errorf("%+v, expected %+v", call, expected[i])
		}
	}
}

func TestATraceGoesWithItsContext(t *testing.T) {
	first, second := 0, 0
	c, other := traced(t, func(Trace) { first++ }), traced(t, func(Trace) { second++ })
	packed(t, c, 8, 64)
	must(t, c.Close())
	if c.trace != 0 {
		t.Error("Close keeps the trace")
	}
	must(t, c.Close())
	packed(t, other, 8, 64)
	packed(t, oneThread(t), 8, 64) // which has none
	if first != 2 || second != 2 {
		t.Errorf("told %d and %d kernels, expected 2 and 2", first, second)
	}
	if err := made(Options{DeviceIndex: 99, Trace: func(Trace) {}}); err == nil {
		t.Error("there is no such device")
	}
}

func TestAPanicOfATraceReachesTheCaller(t *testing.T) {
	fails := true
	c := traced(t, func(Trace) {
		if fails {
			panic("meant to fail")
		}
	})
	x, w := dense(t, c, []float32{1, 2}, 1, 2), dense(t, c, []float32{1, 0, 0, 1}, 2, 2)
	y := empty(t, c, 1, 2)
	for i := 0; i < 3; i++ {
		func() {
			defer func() {
				if found := recover(); found != "meant to fail" {
					t.Errorf("recovered %v", found)
				}
			}()
			c.Linear(x, w, nil, y)
			t.Error("the panic is lost")
		}()
	}
	fails = false
	must(t, c.Linear(x, w, nil, y))
	if got := values(t, c, y, 2); got[0] != 1 || got[1] != 2 {
		t.Errorf("%v, expected 1 and 2", got)
	}
}
