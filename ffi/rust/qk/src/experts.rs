use std::marker::PhantomData;
use std::ptr::null;

use crate::{sys, Activation, Tensor};

/// Which weights of a w `[E,n,k]` each row of x meets, and what becomes of the results; for
/// [`crate::Product::with_experts`].
///
/// Slot j of token t is z = x . transpose(w[e]) + bias[e], e = expert[t,j]. x is `[t,k]` or, a row
/// a slot, `[t,top_k,k]`. y is `[t,top_k,n]`, z itself, or `[t,n]`: a token's slots, each times
/// its weight, added up. Slots with e < 0 are skipped; e >= E gives NaN.
///
/// ```
/// use qk::{Activation, Context, Experts, Product, Tensor};
///
/// let context = Context::new()?;
/// let (x, w) = ([1.0f32; 2 * 64], [0.5f32; 3 * 8 * 64]); // 2 tokens, 3 experts
/// let (chosen, shares) = ([0, 2, 1, -1], [0.75f32, 0.25, 1.0, 0.0]);
/// let mut y = [0.0f32; 2 * 8];
/// let x = Tensor::borrow(&context, &[2, 64], &x)?;
/// let w = Tensor::borrow(&context, &[3, 8, 64], &w)?;
/// let chosen = Tensor::borrow(&context, &[2, 2], &chosen)?;
/// let shares = Tensor::borrow(&context, &[2, 2], &shares)?;
/// let mut ty = Tensor::borrow_mut(&context, &[2, 8], &mut y)?;
/// let experts = Experts::new(&chosen).weight(&shares);
/// context.multiply(&[Product::new(&x, &w, &mut ty).with_experts(&experts)])?;
/// drop(ty);
/// assert_eq!(y, [32.0; 16]);
/// # Ok::<(), qk::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Experts<'a> {
    pub(crate) raw: sys::qk_experts, // whose pointers keep it on one thread
    operands: PhantomData<&'a ()>,
}

impl<'a> Experts<'a> {
    /// `expert` is I32 `[t,top_k]`, read when the product runs.
    pub fn new(expert: &'a Tensor<'_>) -> Experts<'a> {
        let raw = sys::qk_experts {
            struct_size: std::mem::size_of::<sys::qk_experts>() as u32,
            flags: 0,
            expert: expert.as_raw(),
            weight: null(),
            activation: Activation::NONE.0,
            limit: 0.0,
            alpha: 0.0,
            reserved: 0,
        };
        Experts { raw, operands: PhantomData }
    }

    /// Each slot times its weight, F32 `[t,top_k]`, where y adds slots up; without it times 1.
    pub fn weight(mut self, weight: &'a Tensor<'_>) -> Experts<'a> {
        self.raw.weight = weight.as_raw();
        self
    }

    /// Joins the gate and up rows that w has, so that y has half as many columns: halves of an
    /// expert's rows, unless [`Experts::interleaved`].
    pub fn activation(mut self, activation: Activation) -> Experts<'a> {
        self.raw.activation = activation.0;
        self
    }

    /// [`Activation::SWIGLU_CLAMPED`] with its two numbers: 7 and 1.702 in gpt-oss.
    pub fn swiglu_clamped(mut self, limit: f32, alpha: f32) -> Experts<'a> {
        self.raw.activation = Activation::SWIGLU_CLAMPED.0;
        self.raw.limit = limit;
        self.raw.alpha = alpha;
        self
    }

    /// Gate and up rows alternate.
    pub fn interleaved(mut self) -> Experts<'a> {
        self.raw.flags |= sys::QK_EXPERTS_INTERLEAVED as u32;
        self
    }
}
