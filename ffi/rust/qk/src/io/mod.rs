//! Checkpoint files in, tensors out, and back: `qk_io.h`.
mod checkpoint;
mod experts;
mod writer;

pub use checkpoint::{Checkpoint, CheckpointOptions, FileTensor, Layer};
pub use writer::{write_config, Writer};

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::path::Path;

use crate::codes::code;
use crate::error::{text, Error, Result, Status};
use crate::{sys, Format};

code!(
    /// Element types of safetensors.
    Dtype {
        UNKNOWN = QK_DTYPE_UNKNOWN, BOOL = QK_DTYPE_BOOL, F4 = QK_DTYPE_F4,
        F6_E2M3 = QK_DTYPE_F6_E2M3, F6_E3M2 = QK_DTYPE_F6_E3M2, U8 = QK_DTYPE_U8,
        I8 = QK_DTYPE_I8, F8_E5M2 = QK_DTYPE_F8_E5M2, F8_E4M3 = QK_DTYPE_F8_E4M3,
        F8_E8M0 = QK_DTYPE_F8_E8M0, I16 = QK_DTYPE_I16, U16 = QK_DTYPE_U16, F16 = QK_DTYPE_F16,
        BF16 = QK_DTYPE_BF16, I32 = QK_DTYPE_I32, U32 = QK_DTYPE_U32, F32 = QK_DTYPE_F32,
        C64 = QK_DTYPE_C64, F64 = QK_DTYPE_F64, I64 = QK_DTYPE_I64, U64 = QK_DTYPE_U64,
        GGUF = QK_DTYPE_GGUF,
    }
);
code!(
    /// Whose way of storing a layer.
    Dialect {
        UNKNOWN = QK_DIALECT_UNKNOWN, DENSE = QK_DIALECT_DENSE, AWQ_GEMM = QK_DIALECT_AWQ_GEMM,
        AWQ_GEMV = QK_DIALECT_AWQ_GEMV, GPTQ_V1 = QK_DIALECT_GPTQ_V1,
        GPTQ_V2 = QK_DIALECT_GPTQ_V2, COMPRESSED_TENSORS = QK_DIALECT_COMPRESSED_TENSORS,
        BITSANDBYTES = QK_DIALECT_BITSANDBYTES, GGUF = QK_DIALECT_GGUF, FP8 = QK_DIALECT_FP8,
        MODELOPT = QK_DIALECT_MODELOPT, GPT_OSS = QK_DIALECT_GPT_OSS,
        DEEPSEEK = QK_DIALECT_DEEPSEEK, TORCHAO = QK_DIALECT_TORCHAO,
    }
);

impl Dtype {
    /// "F16".
    pub fn name(self) -> String {
        unsafe { text(sys::qk_dtype_name(self.0)) }
    }

    /// The dense format of these values, where there is one.
    pub fn format(self) -> Option<Format> {
        match self {
            Dtype::F32 => Some(Format::F32),
            Dtype::F16 => Some(Format::F16),
            Dtype::BF16 => Some(Format::BF16),
            Dtype::I8 => Some(Format::I8),
            Dtype::I16 => Some(Format::I16),
            _ => None,
        }
    }
}

impl Dialect {
    /// "AutoAWQ gemm".
    pub fn name(self) -> String {
        unsafe { text(sys::qk_dialect_name(self.0)) }
    }
}

/// Runs a call that explains itself in a message; gives the note it may leave.
fn explained(call: impl FnOnce(*mut sys::qk_io_message) -> sys::qk_status) -> Result<String> {
    let mut message = MaybeUninit::<sys::qk_io_message>::zeroed();
    let status = call(message.as_mut_ptr());
    let sentence = unsafe { text((*message.as_ptr()).text.as_ptr()) };
    match status {
        sys::QK_OK => Ok(sentence),
        _ => Err(Error::new(Status(status), sentence)),
    }
}

fn c_string(what: &str, value: &str) -> Result<CString> {
    CString::new(value).map_err(|_| {
        Error::new(Status::ARGUMENT, format!("{what}: has a zero byte, which no name may have"))
    })
}

#[cfg(unix)]
fn c_path(path: &Path) -> Result<CString> {
    use std::os::unix::ffi::OsStrExt;
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::new(Status::ARGUMENT, "path: has a zero byte".to_string()))
}
