package qk

/*
#include <stdlib.h>
#include <qk.h>
*/
import "C"

import (
	"math"
	"runtime"
	"unsafe"
)

// Product is y = x . transpose(w) + bias as data: X [m,k], W [n,k] in any format, Bias [n] or nil,
// Y [m,n] in X's format or F32. Transposed it is y = x . w + bias: X [m,n], Bias [k], Y [m,k].
type Product struct {
	X, W, Bias, Y *Tensor
	Transposed    bool
	Accumulate    bool     // to what Y holds, the sum rounded once
	Experts       *Experts // of W [E,n,k]; nil: W is one weight
}

// Plan is what a product would run as, and why.
type Plan struct {
	Kernel         string // its name, which may change between versions
	BatchFirst     int    // a row of y has the same bits at any m from here
	BatchLast      int    // to here; math.MaxInt32: no end
	WorkspaceBytes int    // that the kernel needs
	Reason         string // why not a faster kernel; "" for the fastest
}

func (p Product) raw() C.qk_product {
	product := C.qk_product{x: p.X.raw(), w: p.W.raw(), bias: p.Bias.raw(), y: p.Y.raw()}
	product.struct_size = C.uint32_t(unsafe.Sizeof(product))
	if p.Transposed {
		product.flags |= C.QK_PRODUCT_TRANSPOSED
	}
	if p.Accumulate {
		product.flags |= C.QK_PRODUCT_ACCUMULATE
	}
	return product
}

// withList calls use with C's form of a list, whose tensors stay alive meanwhile.
func (c *Context) withList(products []Product,
	use func(list *C.qk_product, count C.int32_t) C.qk_status) error {
	err := within("products", len(products), 0, math.MaxInt32)
	if err != nil {
		return err
	}
	list := make([]C.qk_product, len(products)+1) // + 1: the address of none
	for i, p := range products {
		list[i] = p.raw()
		if p.Experts != nil {
			list[i].experts = p.Experts.raw()
			defer C.free(unsafe.Pointer(list[i].experts))
		}
	}
	err = c.check(use(&list[0], C.int32_t(len(products))))
	runtime.KeepAlive(c)
	runtime.KeepAlive(products)
	return err
}

// Multiply runs products in order, as one call; the Y of one may be the X of the next. All are
// checked before the first runs.
func (c *Context) Multiply(products ...Product) error {
	return c.withList(products, func(list *C.qk_product, count C.int32_t) C.qk_status {
		return C.qk_multiply(c.handle, list, count)
	})
}

// MultiplyWorkspace is the workspace bytes for the fastest kernel of each product.
func (c *Context) MultiplyWorkspace(products ...Product) (int, error) {
	var bytes C.size_t
	err := c.withList(products, func(list *C.qk_product, count C.int32_t) C.qk_status {
		return C.qk_multiply_workspace(c.handle, list, count, &bytes)
	})
	return int(bytes), err
}

// Explain says what Multiply would run the product as; nothing runs.
func (c *Context) Explain(product Product) (Plan, error) {
	var plan C.qk_plan
	plan.struct_size = C.uint32_t(unsafe.Sizeof(plan))
	err := c.withList([]Product{product}, func(one *C.qk_product, _ C.int32_t) C.qk_status {
		return C.qk_explain(c.handle, one, &plan)
	})
	if err != nil {
		return Plan{}, err
	}
	return Plan{C.GoString(plan.kernel), int(plan.batch_first), int(plan.batch_last),
		int(plan.workspace_bytes), C.GoString(&plan.reason[0])}, nil
}
