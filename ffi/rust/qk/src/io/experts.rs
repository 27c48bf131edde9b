use super::checkpoint::{describe, Checkpoint, Layer};
use super::{c_string, explained};
use crate::error::Result;
use crate::{sys, Context, Tensor};
use std::ptr::{null, null_mut};

/// A weight and its bias, if it has one.
type Loaded<'t> = (Tensor<'t>, Option<Tensor<'t>>);

/// All experts of one projection as one weight. `*` in a name is in the place of an expert's
/// number: "model.layers.0.mlp.experts.*.up_proj".
impl Checkpoint<'_> {
    /// The projections of mixtures in order of names, loadable or not.
    pub fn expert_layers(&self) -> impl Iterator<Item = Layer> + '_ {
        let count = unsafe { sys::qk_checkpoint_expert_layer_count(self.as_raw()) };
        (0..count).filter_map(move |index| {
            let call = |out, bytes| unsafe {
                sys::qk_checkpoint_expert_layer(self.as_raw(), index, out, bytes)
            };
            describe("index", call).ok()
        })
    }

    /// The projection of that name.
    pub fn expert_layer(&self, name: &str) -> Result<Layer> {
        let c_name = c_string("layer", name)?;
        describe(name, |out, bytes| unsafe {
            sys::qk_checkpoint_find_expert_layer(self.as_raw(), c_name.as_ptr(), out, bytes)
        })
    }

    /// A weight `[E,n,k]` and its bias `[E,n]`, if any. `up` is a second projection, whose rows of
    /// each expert follow the first's: `[E,2n,k]`, for an activation.
    pub fn load_experts(
        &self,
        context: &Context,
        layer: &str,
        up: Option<&str>,
    ) -> Result<Loaded<'static>> {
        self.load_experts_raw(context, layer, up, 0)
    }

    /// The same of one layer of the file that has all experts, pointing into the checkpoint: CPU
    /// contexts only, read-only.
    pub fn load_experts_in_place(&self, context: &Context, layer: &str) -> Result<Loaded<'_>> {
        self.load_experts_raw(context, layer, None, sys::QK_LOAD_IN_PLACE as u32)
    }

    fn load_experts_raw<'t>(
        &self,
        context: &Context,
        layer: &str,
        up: Option<&str>,
        flags: u32,
    ) -> Result<Loaded<'t>> {
        let layer = c_string("layer", layer)?;
        let up = up.map(|up| c_string("up", up)).transpose()?;
        let (mut weight, mut bias) = (null_mut(), null_mut());
        explained(|message| unsafe {
            sys::qk_checkpoint_load_experts(
                self.as_raw(),
                context.as_raw(),
                layer.as_ptr(),
                up.as_ref().map_or(null(), |up| up.as_ptr()),
                flags,
                &mut weight,
                &mut bias,
                message,
            )
        })?;
        let bias = if bias.is_null() { None } else { Some(unsafe { Tensor::from_raw(bias) }) };
        Ok((unsafe { Tensor::from_raw(weight) }, bias))
    }
}
