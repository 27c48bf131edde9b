package checkpoint

/*
#include <stdlib.h>
#include <qk_io.h>
*/
import "C"

import (
	"runtime"

	"qk"
)

// ExpertLayers are the projections of mixtures, in order of names, loadable or not. "*" in a name
// is in the place of an expert's number: "model.layers.0.mlp.experts.*.up_proj".
func (c *Checkpoint) ExpertLayers() []Layer {
	var layers []Layer
	for i := C.int64_t(0); i < C.qk_checkpoint_expert_layer_count(c.handle); i++ {
		var raw C.qk_layer
		status := C.qk_checkpoint_expert_layer(c.handle, i, &raw, C.sizeof_qk_layer)
		if status == C.QK_OK {
			layers = append(layers, newLayer(&raw))
		}
	}
	runtime.KeepAlive(c)
	return layers
}

// ExpertLayer finds one by name.
func (c *Checkpoint) ExpertLayer(name string) (Layer, error) {
	var layer Layer
	err := withName("layer", name, func(cName *C.char) error {
		var raw C.qk_layer
		status := C.qk_checkpoint_find_expert_layer(c.handle, cName, &raw, C.sizeof_qk_layer)
		if status != C.QK_OK {
			return noSuch("layer", name, status)
		}
		layer = newLayer(&raw)
		return nil
	})
	runtime.KeepAlive(c)
	return layer, err
}

// LoadExperts gives all experts of a projection as a weight [E,n,k], and their bias [E,n], nil
// where they have none, copied to the context's device. up is "" or a second projection, whose rows
// of each expert follow the first's: [E,2n,k], for an activation.
func (c *Checkpoint) LoadExperts(context *qk.Context, layer, up string) (
	w, bias *qk.Tensor, err error) {
	if up == "" {
		return c.loadExperts(context, layer, nil, 0, nil)
	}
	err = withName("up", up, func(up *C.char) error {
		w, bias, err = c.loadExperts(context, layer, up, 0, nil)
		return err
	})
	return w, bias, err
}

// LoadExpertsInPlace is LoadExperts of one layer of the file that has all experts, with planes that
// stay in the checkpoint, which the tensors keep: CPU contexts only, read-only.
func (c *Checkpoint) LoadExpertsInPlace(context *qk.Context, layer string) (
	w, bias *qk.Tensor, err error) {
	return c.loadExperts(context, layer, nil, C.QK_LOAD_IN_PLACE, c)
}

func (c *Checkpoint) loadExperts(context *qk.Context, layer string, up *C.char, flags C.uint32_t,
	keeps any) (w, bias *qk.Tensor, err error) {
	var weight, offset *C.qk_tensor
	err = withName("layer", layer, func(layer *C.char) error {
		var message C.qk_io_message
		handle := (*C.qk_context)(context.Handle())
		return explained(C.qk_checkpoint_load_experts(c.handle, handle, layer, up, flags, &weight,
			&offset, &message), &message)
	})
	runtime.KeepAlive(c)
	runtime.KeepAlive(context)
	return adoptLayer(weight, offset, keeps, err)
}
