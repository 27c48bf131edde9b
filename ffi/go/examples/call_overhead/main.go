// What a call of Linear costs over the same call from C, on a shape so small that little else is
// left: best of several rounds of each, alternating.
//
//	go run ./examples/call_overhead [calls a round]
package main

/*
#cgo pkg-config: --static qk
#include <qk.h>

static int calls_from_c(void *context, void *x, void *w, void *y, int count) {
    int bad = 0;
    for (int i = 0; i < count; ++i) bad |= qk_linear(context, x, w, NULL, y) != QK_OK;
    return bad;
}
*/
import "C"

import (
	"fmt"
	"log"
	"math"
	"os"
	"strconv"
	"time"

	"qk"
)

const n, k, rounds = 8, 32, 15

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	calls := 200000
	if len(os.Args) > 1 {
		var err error
		calls, err = strconv.Atoi(os.Args[1])
		check(err)
	}
	context, err := qk.NewContext(qk.Options{Threads: 1})
	check(err)
	weights := make([]float32, n*k)
	for i := range weights {
		weights[i] = float32(i%7 - 3)
	}
	dense, err := qk.FromSlice(context, qk.Desc{Format: qk.FormatF32, Shape: []int64{n, k}}, weights)
	check(err)
	w, err := qk.NewTensor(context, qk.Desc{Format: qk.FormatNF4, ScaleFormat: qk.FormatF32,
		GroupSize: 32, Shape: []int64{n, k}})
	check(err)
	check(context.Quantize(dense, w))
	x, err := qk.FromSlice(context, qk.Desc{Format: qk.FormatF32, Shape: []int64{1, k}}, weights[:k])
	check(err)
	y, err := qk.NewTensor(context, qk.Desc{Format: qk.FormatF32, Shape: []int64{1, n}})
	check(err)

	fromGo, fromC := math.Inf(1), math.Inf(1)
	for round := 0; round < rounds; round++ {
		start := time.Now()
		for i := 0; i < calls; i++ {
			if err := context.Linear(x, w, nil, y); err != nil {
				log.Fatal(err)
			}
		}
		fromGo = math.Min(fromGo, float64(time.Since(start).Nanoseconds())/float64(calls))
		start = time.Now()
		if C.calls_from_c(context.Handle(), x.Handle(), w.Handle(), y.Handle(), C.int(calls)) != 0 {
			log.Fatal("qk_linear was refused")
		}
		fromC = math.Min(fromC, float64(time.Since(start).Nanoseconds())/float64(calls))
	}
	fmt.Printf("qk_linear %d x %d, best of %d rounds of %d calls:\n", n, k, rounds, calls)
	fmt.Printf("from C %.1f ns, from Go %.1f ns, overhead %.1f ns\n", fromC, fromGo, fromGo-fromC)
}
