use std::ffi::CStr;
use std::fmt;
use std::os::raw::c_char;

use crate::sys;

/// A result whose error is libqk's.
pub type Result<T> = std::result::Result<T, Error>;

/// libqk's status code. Values unknown to this crate are kept: their hundred still says enough.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Status(pub i32);

/// Whose fault a failure is: the hundred of its status.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// 1xx: the call is wrong; fix the caller.
    Call,
    /// 2xx: valid, but not in this build or on this device.
    Unsupported,
    /// 3xx: out of memory or workspace.
    Exhausted,
    /// 4xx: the device failed; drop the context.
    Device,
    /// 5xx: stored bytes are damaged, or a file could not be read or written.
    Stored,
    /// 9xx: a bug in qk; please report it.
    Internal,
    /// A hundred that this crate does not know.
    Unknown,
}

#[allow(missing_docs)] // qk.h explains them
impl Status {
    pub const NULL: Status = Status(sys::QK_ERROR_NULL);
    pub const SHAPE: Status = Status(sys::QK_ERROR_SHAPE);
    pub const FORMAT: Status = Status(sys::QK_ERROR_FORMAT);
    pub const STATE: Status = Status(sys::QK_ERROR_STATE);
    pub const DEVICE_MIX: Status = Status(sys::QK_ERROR_DEVICE_MIX);
    pub const BUFFER_SIZE: Status = Status(sys::QK_ERROR_BUFFER_SIZE);
    pub const ABI: Status = Status(sys::QK_ERROR_ABI);
    pub const ARGUMENT: Status = Status(sys::QK_ERROR_ARGUMENT);
    pub const UNSUPPORTED: Status = Status(sys::QK_ERROR_UNSUPPORTED);
    pub const NO_DEVICE: Status = Status(sys::QK_ERROR_NO_DEVICE);
    pub const MEMORY: Status = Status(sys::QK_ERROR_MEMORY);
    pub const WORKSPACE: Status = Status(sys::QK_ERROR_WORKSPACE);
    pub const DEVICE_FAULT: Status = Status(sys::QK_ERROR_DEVICE_FAULT);
    pub const CORRUPT: Status = Status(sys::QK_ERROR_CORRUPT);
    pub const FILE: Status = Status(sys::QK_ERROR_FILE);
    pub const INTERNAL: Status = Status(sys::QK_ERROR_INTERNAL);

    /// Whose fault it is.
    pub fn kind(self) -> Kind {
        match self.0 / 100 {
            1 => Kind::Call,
            2 => Kind::Unsupported,
            3 => Kind::Exhausted,
            4 => Kind::Device,
            5 => Kind::Stored,
            9 => Kind::Internal,
            _ => Kind::Unknown,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&unsafe { text(sys::qk_status_string(self.0)) })
    }
}

/// A refused or failed call: its status, and the sentence that names the argument, its value and
/// what would have been accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    status: Status,
    message: String,
}

impl Error {
    pub(crate) fn new(status: Status, message: String) -> Error {
        let message = if message.is_empty() { status.to_string() } else { message };
        Error { status, message }
    }

    /// The code of qk.h.
    pub fn status(&self) -> Status {
        self.status
    }

    /// libqk's sentence as it is; the status in words where the call has no context to hold one.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// C text as a String; NULL is empty.
///
/// # Safety
/// `pointer` is NULL or points to text that ends in a zero byte.
pub(crate) unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    CStr::from_ptr(pointer).to_string_lossy().into_owned()
}

/// For the calls that have no context, and so no sentence.
pub(crate) fn check(status: sys::qk_status) -> Result<()> {
    match status {
        sys::QK_OK => Ok(()),
        _ => Err(Error::new(Status(status), String::new())),
    }
}

/// A slice of the wrong length, in the words that libqk uses.
pub(crate) fn check_length(what: &str, found: usize, needed: Option<usize>) -> Result<()> {
    match needed {
        Some(needed) if needed == found => Ok(()),
        Some(needed) => Err(Error::new(
            Status::BUFFER_SIZE,
            format!("{what}: has {found} elements, must have {needed}"),
        )),
        None => Err(Error::new(
            Status::SHAPE,
            format!("{what}: has {found} elements, and the sizes given overflow"),
        )),
    }
}
