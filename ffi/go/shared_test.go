package qk

import (
	"runtime"
	"sync"
	"testing"
)

// TestGoroutinesShareAWeight: a context each, one weight; the race detector watches.
func TestGoroutinesShareAWeight(t *testing.T) {
	const n, k = 24, 128
	c := oneThread(t)
	w, err := NewTensor(c, Desc{Format: FormatNF4, ScaleFormat: FormatF16, GroupSize: 32,
		Shape: []int64{n, k}})
	must(t, err)
	must(t, c.Quantize(dense(t, c, weights(n*k, 3), n, k), w))
	x := dense(t, c, weights(k, 4), 1, k)
	multiply := func(c *Context) []float32 {
		y, err := NewTensor(c, Desc{Format: FormatF32, Shape: []int64{1, n}})
		if err != nil {
			return nil
		}
		for i := 0; i < 50 && err == nil; i++ {
			err = c.Linear(x, w, nil, y)
		}
		host := make([]float32, n)
		if err != nil || Download(c, y, PlaneData, host) != nil {
			return nil
		}
		return host
	}
	expected := multiply(c)
	var group sync.WaitGroup
	for i := 0; i < 8; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			c, err := NewContext(Options{Threads: 1})
			if err != nil {
				t.Error(err)
				return
			}
			got := multiply(c) // c is left to its finalizer
			for j := range expected {
				if got == nil || got[j] != expected[j] {
					t.Errorf("y[%d] differs in another goroutine", j)
					return
				}
			}
		}()
	}
	group.Wait()
	if expected[0] == 0 && expected[1] == 0 {
		t.Fatal("nothing was multiplied")
	}
}

// TestFinalizersWhileOthersWork: handles are forgotten and collected between and during calls.
func TestFinalizersWhileOthersWork(t *testing.T) {
	done := make(chan struct{})
	go func() {
		for i := 0; i < 20; i++ {
			runtime.GC()
		}
		close(done)
	}()
	for round := 0; ; round++ {
		c := oneThread(t)
		x := dense(t, c, []float32{1, 2, 3}, 1, 3)
		y := empty(t, c, 1, 2)
		memory, err := NewMemory(24)
		must(t, err)
		copy(View[float32](memory), []float32{1, 0, 0, 0, 1, 0})
		w, err := WrapTensor(c, Desc{Format: FormatF32, Shape: []int64{2, 3}}, memory)
		must(t, err)
		must(t, c.Linear(x, w, nil, y))
		if got := values(t, c, y, 2); got[0] != 1 || got[1] != 2 {
			t.Fatalf("round %d: %v", round, got)
		}
		select {
		case <-done:
			return
		default:
		}
	}
}
