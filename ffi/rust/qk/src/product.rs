use std::marker::PhantomData;
use std::ptr::null;

use crate::error::{text, Error, Result, Status};
use crate::{sys, Context, Experts, Tensor};

/// `y = x . transpose(w) + bias` as data, to be run, listed and explained.
///
/// ```
/// use qk::{Context, Product, Tensor};
///
/// let context = Context::new()?;
/// let (x, w) = ([1.0f32; 64], [0.5f32; 8 * 64]);
/// let (mut y, mut z) = ([0.0f32; 8], [0.0f32; 8]);
/// let x = Tensor::borrow(&context, &[1, 64], &x)?;
/// let a = Tensor::borrow(&context, &[8, 64], &w)?;
/// let b = Tensor::borrow(&context, &[8, 8], &w[..64])?;
/// let mut ty = Tensor::borrow_mut(&context, &[1, 8], &mut y)?;
/// let mut tz = Tensor::borrow_mut(&context, &[1, 8], &mut z)?;
/// let first = Product::new(&x, &a, &mut ty);
/// let second = Product::after(&first, &b, &mut tz);
/// context.multiply(&[first, second])?;
/// drop((ty, tz));
/// assert_eq!((y[0], z[0]), (32.0, 128.0));
/// # Ok::<(), qk::Error>(())
/// ```
#[repr(transparent)]
pub struct Product<'a> {
    raw: sys::qk_product, // whose pointers keep it on one thread
    operands: PhantomData<&'a mut ()>,
}

impl<'a> Product<'a> {
    /// x `[m,k]`, w `[n,k]` in any format, y `[m,n]`.
    pub fn new(x: &'a Tensor<'_>, w: &'a Tensor<'_>, y: &'a mut Tensor<'_>) -> Product<'a> {
        Product::of(x.as_raw(), w, y)
    }

    /// One whose x is the y of a product that runs before it.
    pub fn after(previous: &Product<'a>, w: &'a Tensor<'_>, y: &'a mut Tensor<'_>) -> Product<'a> {
        Product::of(previous.raw.y, w, y)
    }

    fn of(x: *const sys::qk_tensor, w: &'a Tensor<'_>, y: &'a mut Tensor<'_>) -> Product<'a> {
        let raw = sys::qk_product {
            struct_size: std::mem::size_of::<sys::qk_product>() as u32,
            flags: 0,
            x,
            w: w.as_raw(),
            bias: null(),
            y: y.as_raw(),
            experts: null(),
        };
        Product { raw, operands: PhantomData }
    }

    /// `y = x . w`: x `[m,n]`, y `[m,k]`, a bias `[k]`.
    pub fn transposed(mut self) -> Product<'a> {
        self.raw.flags |= sys::QK_PRODUCT_TRANSPOSED as u32;
        self
    }

    /// Adds to what y holds; the sum is rounded once.
    pub fn accumulate(mut self) -> Product<'a> {
        self.raw.flags |= sys::QK_PRODUCT_ACCUMULATE as u32;
        self
    }

    /// The same, with a bias `[n]`.
    pub fn with_bias(mut self, bias: &'a Tensor<'_>) -> Product<'a> {
        self.raw.bias = bias.as_raw();
        self
    }

    /// Of w `[E,n,k]`, and a bias `[E,n]`, the experts that each row of x is for.
    pub fn with_experts(mut self, experts: &'a Experts<'_>) -> Product<'a> {
        self.raw.experts = &experts.raw;
        self
    }
}

/// What a product would run as, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The kernel's name, which may change between versions.
    pub kernel: String,
    /// A row of y has the same bits at any m from here ...
    pub batch_first: i32,
    /// ... to here; `i32::MAX`: no end.
    pub batch_last: i32,
    /// Workspace that the kernel needs.
    pub workspace_bytes: usize,
    /// Why not a faster kernel; empty for the fastest.
    pub reason: String,
}

impl Context {
    /// Runs products in order, as one call; all are checked before the first runs.
    pub fn multiply(&self, products: &[Product<'_>]) -> Result<()> {
        let (list, count) = raw_list(products)?;
        self.check(unsafe { sys::qk_multiply(self.as_raw(), list, count) })
    }

    /// Workspace bytes for the fastest kernel of each of them.
    pub fn multiply_workspace(&self, products: &[Product<'_>]) -> Result<usize> {
        let (list, count) = raw_list(products)?;
        let mut bytes = 0;
        self.check(unsafe { sys::qk_multiply_workspace(self.as_raw(), list, count, &mut bytes) })?;
        Ok(bytes)
    }

    /// What [`Context::multiply`] would run this product as; nothing runs.
    pub fn explain(&self, product: &Product<'_>) -> Result<Plan> {
        let mut plan: sys::qk_plan = unsafe { std::mem::zeroed() };
        plan.struct_size = std::mem::size_of::<sys::qk_plan>() as u32;
        self.check(unsafe { sys::qk_explain(self.as_raw(), &product.raw, &mut plan) })?;
        Ok(Plan {
            kernel: unsafe { text(plan.kernel) },
            batch_first: plan.batch_first,
            batch_last: plan.batch_last,
            workspace_bytes: plan.workspace_bytes,
            reason: unsafe { text(plan.reason.as_ptr()) },
        })
    }
}

fn raw_list(products: &[Product<'_>]) -> Result<(*const sys::qk_product, i32)> {
    let count = i32::try_from(products.len())
        .map_err(|_| Error::new(Status::ARGUMENT, format!("products: are {}", products.len())))?;
    Ok((products.as_ptr().cast(), count))
}
