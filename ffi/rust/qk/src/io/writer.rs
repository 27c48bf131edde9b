use std::os::raw::c_char;
use std::path::Path;
use std::ptr::{null, null_mut, NonNull};

use super::{c_path, c_string, explained, Checkpoint, Dialect, Dtype};
use crate::error::Result;
use crate::{sys, Context, Desc, Format, Tensor};

/// One safetensors file being written: declare everything, write data, finish. Dropped unfinished,
/// it leaves the file that was at the path as it was.
pub struct Writer {
    raw: NonNull<sys::qk_writer>,
}

// A writer serves one thread at a time; NonNull keeps it from being shared.
unsafe impl Send for Writer {}

impl Writer {
    /// Bytes go to a new file beside path until [`Writer::finish`].
    pub fn new(path: impl AsRef<Path>) -> Result<Writer> {
        let path = c_path(path.as_ref())?;
        let mut out = null_mut();
        explained(|message| unsafe {
            sys::qk_writer_create(path.as_ptr(), null(), &mut out, message)
        })?;
        Ok(Writer { raw: NonNull::new(out).expect("libqk sets *out on QK_OK") })
    }

    /// A pair for `__metadata__`.
    pub fn metadata(&mut self, key: &str, value: &str) -> Result<()> {
        let (key, value) = (c_string("key", key)?, c_string("value", value)?);
        explained(|message| unsafe {
            sys::qk_writer_metadata(self.raw.as_ptr(), key.as_ptr(), value.as_ptr(), message)
        })?;
        Ok(())
    }

    /// A tensor to come.
    pub fn declare(&mut self, name: &str, dtype: Dtype, shape: &[i64]) -> Result<()> {
        let name = c_string("name", name)?;
        let rank = i32::try_from(shape.len()).unwrap_or(i32::MAX);
        explained(|message| unsafe {
            let writer = self.raw.as_ptr();
            sys::qk_writer_declare(writer, name.as_ptr(), dtype.0, rank, shape.as_ptr(), message)
        })?;
        Ok(())
    }

    /// Appends little-endian bytes to one tensor.
    pub fn write(&mut self, name: &str, data: &[u8]) -> Result<()> {
        let name = c_string("name", name)?;
        let pointer = data.as_ptr() as *const _;
        explained(|message| unsafe {
            let writer = self.raw.as_ptr();
            sys::qk_writer_write(writer, name.as_ptr(), pointer, data.len(), message)
        })?;
        Ok(())
    }

    /// A quantized layer to come, in the tensors of a dialect.
    pub fn declare_layer(
        &mut self,
        dialect: Dialect,
        layer: &str,
        desc: &Desc,
        dense_format: Format,
    ) -> Result<()> {
        let layer = c_string("layer", layer)?;
        explained(|message| unsafe {
            sys::qk_writer_declare_layer(
                self.raw.as_ptr(),
                dialect.0,
                layer.as_ptr(),
                &desc.raw,
                dense_format.0,
                message,
            )
        })?;
        Ok(())
    }

    /// The layer's planes.
    pub fn write_layer(
        &mut self,
        context: &Context,
        layer: &str,
        tensor: &Tensor<'_>,
    ) -> Result<()> {
        let layer = c_string("layer", layer)?;
        explained(|message| unsafe {
            sys::qk_writer_write_layer(
                self.raw.as_ptr(),
                context.as_raw(),
                layer.as_ptr(),
                tensor.as_raw(),
                message,
            )
        })?;
        Ok(())
    }

    /// The new file takes path's place. After this only dropping is left.
    pub fn finish(&mut self) -> Result<()> {
        explained(|message| unsafe { sys::qk_writer_finish(self.raw.as_ptr(), message) })?;
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        unsafe { sys::qk_writer_destroy(self.raw.as_ptr()) }
    }
}

/// Writes a config.json: that of `from`, or an empty one, with the quantization_config that
/// Python's loaders need. `kept` are the layers that stayed dense.
pub fn write_config(
    from: Option<&Checkpoint<'_>>,
    path: impl AsRef<Path>,
    dialect: Dialect,
    desc: &Desc,
    dense_format: Format,
    kept: &[&str],
) -> Result<()> {
    let path = c_path(path.as_ref())?;
    let names = kept.iter().map(|name| c_string("kept", name)).collect::<Result<Vec<_>>>()?;
    let pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    explained(|message| unsafe {
        sys::qk_checkpoint_write_config(
            from.map_or(null(), |from| from.as_raw() as *const _),
            path.as_ptr(),
            dialect.0,
            &desc.raw,
            dense_format.0,
            pointers.as_ptr(),
            pointers.len() as i64,
            message,
        )
    })?;
    Ok(())
}
