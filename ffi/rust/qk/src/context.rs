use std::cell::RefCell;
use std::ffi::c_void;
use std::panic::AssertUnwindSafe;
use std::ptr::{null, null_mut, NonNull};
use std::rc::Rc;

use crate::error::{text, Error, Result, Status};
use crate::trace::{tell, Teller, Trace};
use crate::{sys, Device, Tensor};

/// How a context is made. Memory comes from the C library and threads are libqk's own; an
/// allocator or an executor of the caller's is given through [`crate::sys`].
#[derive(Clone, Copy)]
pub struct ContextOptions {
    /// [`Device::CPU`] by default.
    pub device: Device,
    /// Which device of that kind.
    pub device_index: i32,
    /// 0: one a core. 1: the calling thread alone.
    pub thread_count: i32,
    /// Scratch, allocated once; see [`Context::linear_workspace`] and [`crate::Gru::workspace`].
    pub workspace_bytes: usize,
    /// 0 or one of the modes below: what `linear` may do on the CPU.
    pub flags: u32,
    /// CPU: the sets of [`InstructionSets`] that may be used; 0: all there are.
    pub instruction_sets: u32,
    /// What [`ContextOptions::on_stream`] sets.
    pub stream: Stream,
}

/// A `cudaStream_t`; the default stream unless [`ContextOptions::on_stream`] says otherwise.
#[derive(Clone, Copy)]
pub struct Stream(*mut c_void);

impl Default for ContextOptions {
    fn default() -> ContextOptions {
        ContextOptions {
            device: Device::CPU,
            device_index: 0,
            thread_count: 0,
            workspace_bytes: 0,
            flags: 0,
            instruction_sets: 0,
            stream: Stream(null_mut()),
        }
    }
}

impl ContextOptions {
    /// x and 4-bit weights may be rounded to bf16.
    pub const BF16_PRODUCTS: u32 = sys::QK_CONTEXT_BF16_PRODUCTS as u32;
    /// x in blocks of 8-bit integers; needs the workspace that `linear_workspace` names.
    pub const INT8_ACTIVATIONS: u32 = sys::QK_CONTEXT_INT8_ACTIVATIONS as u32;

    /// The `cudaStream_t` that device work is queued on.
    ///
    /// # Safety
    /// The stream belongs to the device and outlives the context.
    pub unsafe fn on_stream(mut self, stream: *mut c_void) -> ContextOptions {
        self.stream = Stream(stream);
        self
    }
}

/// Bits for [`ContextOptions::instruction_sets`]; each counts with the one that it extends.
pub struct InstructionSets;

impl InstructionSets {
    /// Portable code, always used.
    pub const GENERIC: u32 = sys::QK_ISA_GENERIC as u32;
    /// AVX2, FMA, F16C.
    pub const AVX2: u32 = sys::QK_ISA_AVX2 as u32;
    /// Extends AVX2; used in int8 mode.
    pub const AVX_VNNI: u32 = sys::QK_ISA_AVX_VNNI as u32;
    /// AVX-512 F, BW, DQ and VL; extends AVX2.
    pub const AVX512: u32 = sys::QK_ISA_AVX512 as u32;
    /// Extends AVX512.
    pub const AVX512_VBMI: u32 = sys::QK_ISA_AVX512_VBMI as u32;
    /// Extends AVX512.
    pub const AVX512_VNNI: u32 = sys::QK_ISA_AVX512_VNNI as u32;
    /// Extends AVX512.
    pub const AVX512_BF16: u32 = sys::QK_ISA_AVX512_BF16 as u32;
    /// Extends AVX512; used in int8 mode, where Linux permits it.
    pub const AMX_INT8: u32 = sys::QK_ISA_AMX_INT8 as u32;
    /// The same in bf16 mode, beside AVX512_BF16.
    pub const AMX_BF16: u32 = sys::QK_ISA_AMX_BF16 as u32;
    /// The base of aarch64.
    pub const NEON: u32 = sys::QK_ISA_NEON as u32;
    /// Extends NEON.
    pub const DOTPROD: u32 = sys::QK_ISA_DOTPROD as u32;
    /// Extends DOTPROD.
    pub const I8MM: u32 = sys::QK_ISA_I8MM as u32;
    /// RISC-V's vectors.
    pub const RVV: u32 = sys::QK_ISA_RVV as u32;
}

/// What a context really has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextInfo {
    /// The kind of device.
    pub device: Device,
    /// Which device of that kind.
    pub device_index: i32,
    /// Threads that work, the caller's included: fewer than asked for where there were no more.
    pub thread_count: i32,
    /// The context's flags.
    pub flags: u32,
    /// The sets of [`InstructionSets`] that kernels are chosen from.
    pub instruction_sets: u32,
    /// Scratch that it has.
    pub workspace_bytes: usize,
}

/// One device, one stream, one workspace; serves one thread at a time.
///
/// ```compile_fail
/// fn shared<T: Sync>() {}
/// shared::<qk::Context>();
/// ```
pub struct Context {
    raw: NonNull<sys::qk_context>,
    device: Device,
    trace: Option<AssertUnwindSafe<Rc<Teller>>>, // C has its address; no panic gets past `tell`
}

// A context may move between calls, and its trace, which nothing else owns, with it; NonNull keeps
// it from being shared.
unsafe impl Send for Context {}

impl Context {
    /// The CPU with default options.
    pub fn new() -> Result<Context> {
        Context::with_options(&ContextOptions::default())
    }

    /// A context as described.
    pub fn with_options(options: &ContextOptions) -> Result<Context> {
        Context::create(options, None)
    }

    /// One that tells `trace` each kernel that runs, in the thread of the call.
    ///
    /// A panic of `trace` is reported by the panic hook and ends there: the call goes on. To use
    /// the context in its own trace is such a panic.
    ///
    /// ```
    /// use qk::{Context, ContextOptions, Tensor};
    ///
    /// let context = Context::with_trace(&ContextOptions::default(), |call| {
    ///     println!("{} {:?}, {}", call.operation, call.shape, call.kernel);
    /// })?;
    /// let (x, w, mut y) = ([1.0f32; 64], [0.5f32; 8 * 64], [0.0f32; 8]);
    /// let x = Tensor::borrow(&context, &[1, 64], &x)?;
    /// let w = Tensor::borrow(&context, &[8, 64], &w)?;
    /// context.linear(&x, &w, None, &mut Tensor::borrow_mut(&context, &[1, 8], &mut y)?)?;
    /// # Ok::<(), qk::Error>(())
    /// ```
    pub fn with_trace(
        options: &ContextOptions,
        trace: impl FnMut(Trace) + Send + 'static,
    ) -> Result<Context> {
        let teller: Rc<Teller> = Rc::new(RefCell::new(Box::new(trace)));
        Context::create(options, Some(AssertUnwindSafe(teller)))
    }

    fn create(
        options: &ContextOptions,
        trace: Option<AssertUnwindSafe<Rc<Teller>>>,
    ) -> Result<Context> {
        let raw_options = sys::qk_context_options {
            struct_size: std::mem::size_of::<sys::qk_context_options>() as u32,
            abi_version: sys::QK_ABI_VERSION as u32,
            device: options.device.0,
            device_index: options.device_index,
            thread_count: options.thread_count,
            flags: options.flags,
            stream: options.stream.0,
            workspace_bytes: options.workspace_bytes,
            allocator: null(),
            executor: null(),
            instruction_sets: options.instruction_sets,
            reserved: 0,
            trace: trace.as_ref().map(|_| tell as _),
            trace_user: trace.as_ref().map_or(null_mut(), |t| Rc::as_ptr(t) as *mut c_void),
        };
        let mut out = null_mut();
        crate::error::check(unsafe { sys::qk_context_create(&raw_options, &mut out) })?;
        let raw = NonNull::new(out).expect("libqk sets *out on QK_OK");
        Ok(Context { raw, device: options.device, trace })
    }

    /// The handle, for calls through [`crate::sys`]; it stays this context's.
    ///
    /// # Panics
    /// In the context's own trace, which must not use it.
    pub fn as_raw(&self) -> *mut sys::qk_context {
        if let Some(trace) = &self.trace {
            assert!(trace.try_borrow().is_ok(), "a trace must not use its own context");
        }
        self.raw.as_ptr()
    }

    pub(crate) fn device(&self) -> Device {
        self.device
    }

    /// A status of a call on this context as a result, with the sentence.
    pub(crate) fn check(&self, status: sys::qk_status) -> Result<()> {
        match status {
            sys::QK_OK => Ok(()),
            _ => Err(self.failure(status)),
        }
    }

    #[cold]
    fn failure(&self, status: sys::qk_status) -> Error {
        let sentence = unsafe { text(sys::qk_context_error(self.as_raw())) };
        Error::new(Status(status), sentence)
    }

    /// Device, threads, instruction sets and scratch that it really has.
    pub fn info(&self) -> Result<ContextInfo> {
        let mut info: sys::qk_context_info = unsafe { std::mem::zeroed() };
        info.struct_size = std::mem::size_of::<sys::qk_context_info>() as u32;
        self.check(unsafe { sys::qk_context_describe(self.as_raw(), &mut info) })?;
        Ok(ContextInfo {
            device: Device(info.device),
            device_index: info.device_index,
            thread_count: info.thread_count,
            flags: info.flags,
            instruction_sets: info.instruction_sets,
            workspace_bytes: info.workspace_bytes,
        })
    }

    /// Waits for queued device work; reports its faults.
    pub fn synchronize(&self) -> Result<()> {
        self.check(unsafe { sys::qk_context_synchronize(self.as_raw()) })
    }

    /// The codes nearest to `dense`, in the format of `quantized`.
    pub fn quantize(&self, dense: &Tensor<'_>, quantized: &mut Tensor<'_>) -> Result<()> {
        self.check(unsafe { sys::qk_quantize(self.as_raw(), dense.as_raw(), quantized.as_raw()) })
    }

    /// The values of `quantized`, in the dense format of `dense`.
    pub fn dequantize(&self, quantized: &Tensor<'_>, dense: &mut Tensor<'_>) -> Result<()> {
        self.check(unsafe { sys::qk_dequantize(self.as_raw(), quantized.as_raw(), dense.as_raw()) })
    }

    /// The same values in another layout.
    pub fn repack(&self, from: &Tensor<'_>, to: &mut Tensor<'_>) -> Result<()> {
        self.check(unsafe { sys::qk_repack(self.as_raw(), from.as_raw(), to.as_raw()) })
    }

    /// `y = x . transpose(w) + bias`: x `[m,k]`, w `[n,k]` in any format, bias `[n]`, y `[m,n]`.
    #[inline]
    pub fn linear(
        &self,
        x: &Tensor<'_>,
        w: &Tensor<'_>,
        bias: Option<&Tensor<'_>>,
        y: &mut Tensor<'_>,
    ) -> Result<()> {
        let bias = bias.map_or(null(), |bias| bias.as_raw() as *const _);
        self.check(unsafe {
            sys::qk_linear(self.as_raw(), x.as_raw(), w.as_raw(), bias, y.as_raw())
        })
    }

    /// Workspace bytes that [`Context::linear`] needs for up to `m_max` rows of x.
    pub fn linear_workspace(&self, w: &Tensor<'_>, m_max: i64) -> Result<usize> {
        let mut bytes = 0;
        self.check(unsafe {
            sys::qk_linear_workspace(self.as_raw(), w.as_raw(), m_max, &mut bytes)
        })?;
        Ok(bytes)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        unsafe { sys::qk_context_destroy(self.raw.as_ptr()) }
    }
}
