use std::cell::RefCell;
use std::ffi::{c_void, CStr};
use std::os::raw::c_char;
use std::panic::{catch_unwind, AssertUnwindSafe};

use crate::{sys, Status};

/// A kernel that has run, or on CUDA is queued; see [`crate::Context::with_trace`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Trace {
    /// "multiply", "quantize", "dequantize", "repack", "gru_run", ...
    pub operation: &'static str,
    /// The kernel's name, which may change between versions.
    pub kernel: &'static str,
    /// multiply: m, n, k; gru_run: t, b, c, h; else rows, columns.
    pub shape: Vec<i64>,
    /// Of the call on the host.
    pub seconds: f64,
    /// `Status(0)`, or that of the call's error.
    pub status: Status,
}

/// A caller's closure, borrowed while it is told.
pub(crate) type Teller = RefCell<Box<dyn FnMut(Trace) + Send>>;

/// What C calls.
///
/// # Safety
/// `user` points to a [`Teller`] of the calling thread, `call` to a kernel's trace.
pub(crate) unsafe extern "C" fn tell(user: *mut c_void, call: *const sys::qk_trace) {
    let teller = &*user.cast::<Teller>();
    let told = AssertUnwindSafe(|| {
        let call = &*call;
        let operation = static_text(call.operation);
        let count = match operation {
            "multiply" => 3,
            "gru_run" => 4,
            _ => 2,
        };
        (teller.borrow_mut())(Trace {
            operation,
            kernel: static_text(call.kernel),
            shape: call.shape[..count].to_vec(),
            seconds: call.seconds,
            status: Status(call.status),
        })
    });
    if let Err(panic) = catch_unwind(told) {
        std::mem::forget(panic); // the hook has reported it; its drop might panic, here in C's call
    }
}

/// The text of a linked library's constant.
unsafe fn static_text(pointer: *const c_char) -> &'static str {
    CStr::from_ptr(pointer).to_str().unwrap_or_default()
}
