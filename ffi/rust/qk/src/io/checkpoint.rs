use std::marker::PhantomData;
use std::os::raw::c_char;
use std::path::Path;
use std::ptr::{null, null_mut, NonNull};

use super::{c_path, c_string, explained, Dialect, Dtype};
use crate::error::{check, text, Error, Result, Status};
use crate::{sys, Context, Desc, Format, Tensor};

/// Limits for what files may ask for; 0 is libqk's own.
#[derive(Clone, Copy, Default, Debug)]
pub struct CheckpointOptions {
    /// Nesting of any JSON text; at most 256.
    pub max_json_depth: i32,
    /// Of one file.
    pub max_header_bytes: i64,
    /// Of all files together.
    pub max_tensors: i64,
}

/// One model: its files, tensors and layers. Never changes, so any number of threads may read it.
/// `'m` is how long memory given to [`Checkpoint::from_memory`] lives.
pub struct Checkpoint<'m> {
    raw: NonNull<sys::qk_checkpoint>,
    memory: PhantomData<&'m [u8]>,
}

unsafe impl Send for Checkpoint<'_> {}
unsafe impl Sync for Checkpoint<'_> {}

/// One entry of a file.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // qk_io.h explains them
pub struct FileTensor<'c> {
    pub name: String,
    pub dtype: Dtype,
    pub dtype_name: String,
    pub shape: &'c [i64],
    pub data: &'c [u8],
    pub file: String,
}

/// One linear layer, loadable or not.
#[derive(Clone, Debug)]
pub struct Layer {
    /// The module's: "model.layers.0.mlp.up_proj".
    pub name: String,
    /// Whose way of storing it.
    pub dialect: Dialect,
    /// What it loads as; or why it does not.
    pub desc: Result<Desc>,
    /// Whether a bias comes with it.
    pub has_bias: bool,
    /// What the weights were before, or what scales are in.
    pub dense_format: Format,
    /// In the file, bias included.
    pub bytes: i64,
}

impl Checkpoint<'static> {
    /// A file, an index of shards or a folder, copied into memory. Files are untrusted: whatever
    /// is in them, this ends in a checkpoint or an [`Error`].
    pub fn open(path: impl AsRef<Path>) -> Result<Checkpoint<'static>> {
        Checkpoint::open_with(path, &CheckpointOptions::default())
    }

    /// The same within other limits.
    pub fn open_with(
        path: impl AsRef<Path>,
        options: &CheckpointOptions,
    ) -> Result<Checkpoint<'static>> {
        open(path.as_ref(), options, sys::QK_CHECKPOINT_READ as u32)
    }

    /// The same, mapped: nothing is copied, pages are read when they are needed.
    ///
    /// # Safety
    /// Nobody writes or truncates the files while the checkpoint, or a tensor loaded in place,
    /// lives: their bytes are handed out as slices.
    pub unsafe fn map(
        path: impl AsRef<Path>,
        options: &CheckpointOptions,
    ) -> Result<Checkpoint<'static>> {
        open(path.as_ref(), options, 0)
    }
}

fn open(path: &Path, options: &CheckpointOptions, flags: u32) -> Result<Checkpoint<'static>> {
    let path = c_path(path)?;
    let options = raw_options(options, flags);
    let mut out = null_mut();
    explained(|message| unsafe {
        sys::qk_checkpoint_open(path.as_ptr(), &options, &mut out, message)
    })?;
    Ok(Checkpoint::from_raw(out))
}

fn raw_options(options: &CheckpointOptions, flags: u32) -> sys::qk_checkpoint_options {
    sys::qk_checkpoint_options {
        struct_size: std::mem::size_of::<sys::qk_checkpoint_options>() as u32,
        abi_version: sys::QK_ABI_VERSION as u32,
        flags,
        max_json_depth: options.max_json_depth,
        max_header_bytes: options.max_header_bytes,
        max_tensors: options.max_tensors,
        allocator: null(),
    }
}

impl<'m> Checkpoint<'m> {
    /// One safetensors file in memory, and the text of its config.json, if any.
    pub fn from_memory(bytes: &'m [u8], config: Option<&str>) -> Result<Checkpoint<'m>> {
        let options = raw_options(&CheckpointOptions::default(), 0);
        let (text, length) =
            config.map_or((null(), 0), |config| (config.as_ptr() as *const c_char, config.len()));
        let mut out = null_mut();
        explained(|message| unsafe {
            sys::qk_checkpoint_open_memory(
                bytes.as_ptr() as *const _,
                bytes.len(),
                text,
                length,
                &options,
                &mut out,
                message,
            )
        })?;
        Ok(Checkpoint::from_raw(out))
    }

    fn from_raw(out: *mut sys::qk_checkpoint) -> Checkpoint<'m> {
        let raw = NonNull::new(out).expect("libqk sets *out on QK_OK");
        Checkpoint { raw, memory: PhantomData }
    }

    pub(super) fn as_raw(&self) -> *mut sys::qk_checkpoint {
        self.raw.as_ptr()
    }

    /// The files' entries in order of names.
    pub fn tensors(&self) -> impl Iterator<Item = FileTensor<'_>> + '_ {
        let count = unsafe { sys::qk_checkpoint_tensor_count(self.as_raw()) };
        (0..count).filter_map(move |index| {
            let call = |out| unsafe { sys::qk_checkpoint_tensor(self.as_raw(), index, out) };
            self.file_tensor("index", call).ok()
        })
    }

    /// The entry of that name.
    pub fn tensor(&self, name: &str) -> Result<FileTensor<'_>> {
        let c_name = c_string("name", name)?;
        self.file_tensor(name, |out| unsafe {
            sys::qk_checkpoint_find_tensor(self.as_raw(), c_name.as_ptr(), out)
        })
    }

    fn file_tensor(
        &self,
        name: &str,
        call: impl FnOnce(*mut sys::qk_file_tensor) -> sys::qk_status,
    ) -> Result<FileTensor<'_>> {
        let mut raw = std::mem::MaybeUninit::<sys::qk_file_tensor>::zeroed();
        let raw = match call(raw.as_mut_ptr()) {
            sys::QK_OK => unsafe { raw.assume_init() },
            status => return Err(no_such("tensor", name, status)),
        };
        unsafe {
            Ok(FileTensor {
                name: text(raw.name),
                dtype: Dtype(raw.dtype),
                dtype_name: text(raw.dtype_name),
                shape: slice(raw.shape, raw.rank.into()),
                data: slice(raw.data as *const u8, raw.bytes),
                file: text(raw.file),
            })
        }
    }

    /// The `__metadata__` pairs of all files, in file order.
    pub fn metadata(&self) -> Vec<(String, String)> {
        let count = unsafe { sys::qk_checkpoint_metadata_count(self.as_raw()) };
        let mut pairs = Vec::new();
        for index in 0..count {
            let (mut key, mut value) = (null(), null());
            let status =
                unsafe { sys::qk_checkpoint_metadata(self.as_raw(), index, &mut key, &mut value) };
            if check(status).is_ok() {
                pairs.push(unsafe { (text(key), text(value)) });
            }
        }
        pairs
    }

    /// The linear layers in order of names, loadable or not.
    pub fn layers(&self) -> impl Iterator<Item = Layer> + '_ {
        let count = unsafe { sys::qk_checkpoint_layer_count(self.as_raw()) };
        (0..count).filter_map(move |index| {
            let call =
                |out, bytes| unsafe { sys::qk_checkpoint_layer(self.as_raw(), index, out, bytes) };
            describe("index", call).ok()
        })
    }

    /// The layer of that name.
    pub fn layer(&self, name: &str) -> Result<Layer> {
        let c_name = c_string("layer", name)?;
        describe(name, |out, bytes| unsafe {
            sys::qk_checkpoint_find_layer(self.as_raw(), c_name.as_ptr(), out, bytes)
        })
    }

    /// A layer's weight `[n,k]` and its bias `[n]`, if any, on the context's device.
    pub fn load(
        &self,
        context: &Context,
        layer: &str,
    ) -> Result<(Tensor<'static>, Option<Tensor<'static>>)> {
        self.load_raw(context, layer, 0)
    }

    /// The same, pointing into the checkpoint: CPU contexts only, read-only.
    pub fn load_in_place(
        &self,
        context: &Context,
        layer: &str,
    ) -> Result<(Tensor<'_>, Option<Tensor<'_>>)> {
        self.load_raw(context, layer, sys::QK_LOAD_IN_PLACE as u32)
    }

    fn load_raw<'t>(
        &self,
        context: &Context,
        layer: &str,
        flags: u32,
    ) -> Result<(Tensor<'t>, Option<Tensor<'t>>)> {
        let layer = c_string("layer", layer)?;
        let (mut weight, mut bias) = (null_mut(), null_mut());
        explained(|message| unsafe {
            sys::qk_checkpoint_load(
                self.as_raw(),
                context.as_raw(),
                layer.as_ptr(),
                flags,
                &mut weight,
                &mut bias,
                message,
            )
        })?;
        let bias = if bias.is_null() { None } else { Some(unsafe { Tensor::from_raw(bias) }) };
        Ok((unsafe { Tensor::from_raw(weight) }, bias))
    }

    /// Reads every scale, offset and bias; gives the note that libqk may leave, or "".
    pub fn verify_layer(&self, layer: &str) -> Result<String> {
        let layer = c_string("layer", layer)?;
        explained(|message| unsafe {
            sys::qk_checkpoint_verify_layer(self.as_raw(), layer.as_ptr(), message)
        })
    }
}

impl Drop for Checkpoint<'_> {
    fn drop(&mut self) {
        unsafe { sys::qk_checkpoint_destroy(self.as_raw()) }
    }
}

/// The calls that find by name have no message, so the sentence is made here.
fn no_such(what: &str, name: &str, status: sys::qk_status) -> Error {
    Error::new(Status(status), format!("{name}: the checkpoint has no such {what}"))
}

pub(super) fn describe(
    name: &str,
    call: impl FnOnce(*mut sys::qk_layer, usize) -> sys::qk_status,
) -> Result<Layer> {
    let mut raw = std::mem::MaybeUninit::<sys::qk_layer>::zeroed();
    let raw = match call(raw.as_mut_ptr(), std::mem::size_of::<sys::qk_layer>()) {
        sys::QK_OK => unsafe { raw.assume_init() },
        status => return Err(no_such("layer", name, status)),
    };
    let reason = unsafe { text(raw.reason) };
    Ok(Layer {
        name: unsafe { text(raw.name) },
        dialect: Dialect(raw.dialect),
        desc: match raw.status {
            sys::QK_OK => Ok(Desc { raw: raw.desc }),
            status => Err(Error::new(Status(status), reason)),
        },
        has_bias: raw.has_bias != 0,
        dense_format: Format(raw.dense_format),
        bytes: raw.bytes,
    })
}

/// # Safety
/// `pointer` has `count` elements that live for `'c`, or count is 0.
unsafe fn slice<'c, T>(pointer: *const T, count: i64) -> &'c [T] {
    if count <= 0 || pointer.is_null() {
        return &[];
    }
    std::slice::from_raw_parts(pointer, count as usize)
}
