use std::ffi::c_void;
use std::marker::PhantomData;
use std::mem::size_of_val;
use std::ptr::{null_mut, NonNull};

use crate::error::{check, check_length, Error, Result, Status};
use crate::{sys, Context, Desc, Device, Format, Plane};

/// The bits of an IEEE half.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(transparent)]
pub struct F16(pub u16);

/// The bits of a bfloat16: the upper half of an f32.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(transparent)]
pub struct BF16(pub u16);

/// A number that any bits are valid for, so that planes can be copied to and from slices of it.
///
/// # Safety
/// No padding, every bit pattern valid, and `FORMAT`, where there is one, means this type.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// The dense format of this type; None for types that only fill planes.
    const FORMAT: Option<Format>;
}
macro_rules! elements {
    ($($name:ty: $format:expr),* $(,)?) => {
        $(unsafe impl Element for $name { const FORMAT: Option<Format> = $format; })*
    };
}
elements! {
    f32: Some(Format::F32), F16: Some(Format::F16), BF16: Some(Format::BF16),
    i8: Some(Format::I8), i16: Some(Format::I16), i32: Some(Format::I32),
    u8: None, u16: None, u32: None,
}

/// Shape, format, layout and storage on one device. `'a` is how long borrowed memory lives;
/// tensors with storage of their own are `Tensor<'static>`.
///
/// A tensor needs its context's device, not its context: it stays valid when that is dropped.
///
/// ```compile_fail
/// let context = qk::Context::new().unwrap();
/// let tensor = {
///     let memory = vec![0.0f32; 4];
///     qk::Tensor::borrow(&context, &[4], &memory).unwrap()
/// };
/// tensor.desc().unwrap(); // memory is gone
/// ```
pub struct Tensor<'a> {
    raw: NonNull<sys::qk_tensor>,
    memory: PhantomData<&'a ()>,
}

// Tensors that are not written may be read through any number of contexts at once, and what writes
// takes &mut. They hold no thread's state.
unsafe impl Send for Tensor<'_> {}
unsafe impl Sync for Tensor<'_> {}

impl<'a> Tensor<'a> {
    /// Storage on the context's device, uninitialised.
    pub fn new(context: &Context, desc: &Desc) -> Result<Tensor<'static>> {
        let mut out = null_mut();
        context.check(unsafe { sys::qk_tensor_create(context.as_raw(), &desc.raw, &mut out) })?;
        Ok(unsafe { Tensor::from_raw(out) })
    }

    /// A dense tensor over memory of the caller's, for CPU contexts; never an output.
    pub fn borrow<T: Element>(
        context: &Context,
        shape: &[i64],
        memory: &'a [T],
    ) -> Result<Tensor<'a>> {
        let desc = dense_desc::<T>(shape, memory.len())?.read_only();
        wrap(context, &desc, &[memory.as_ptr() as *mut c_void])
    }

    /// The same over memory that operations may write.
    pub fn borrow_mut<T: Element>(
        context: &Context,
        shape: &[i64],
        memory: &'a mut [T],
    ) -> Result<Tensor<'a>> {
        let desc = dense_desc::<T>(shape, memory.len())?;
        wrap(context, &desc, &[memory.as_mut_ptr() as *mut c_void])
    }

    /// Planes in memory of the caller's, `planes[i]` plane i, empty where there is none; for CPU
    /// contexts; never an output.
    pub fn borrow_planes(
        context: &Context,
        desc: &Desc,
        planes: &[&'a [u8]],
    ) -> Result<Tensor<'a>> {
        check_planes(desc, planes.iter().map(|plane| plane.len()))?;
        let pointers: Vec<_> =
            planes.iter().map(|p| address(p.as_ptr() as *mut u8, p.len())).collect();
        wrap(context, &desc.read_only(), &pointers)
    }

    /// The same over memory that operations may write.
    pub fn borrow_planes_mut(
        context: &Context,
        desc: &Desc,
        planes: &mut [&'a mut [u8]],
    ) -> Result<Tensor<'a>> {
        check_planes(desc, planes.iter().map(|plane| plane.len()))?;
        let pointers: Vec<_> =
            planes.iter_mut().map(|p| address(p.as_mut_ptr(), p.len())).collect();
        wrap(context, desc, &pointers)
    }

    /// Planes anywhere on the context's device.
    ///
    /// # Safety
    /// Each plane is NULL or has [`Desc::plane_bytes`] bytes on the context's device. Nothing
    /// else writes it, or reads it while libqk writes, as long as the tensor lives and until work
    /// queued with it is done.
    pub unsafe fn wrap(
        context: &Context,
        desc: &Desc,
        planes: &[*mut c_void],
    ) -> Result<Tensor<'a>> {
        let count = i32::try_from(planes.len()).unwrap_or(i32::MAX);
        let mut out = null_mut();
        context.check(sys::qk_tensor_wrap(
            context.as_raw(),
            &desc.raw,
            planes.as_ptr(),
            count,
            &mut out,
        ))?;
        Ok(Tensor::from_raw(out))
    }

    /// Takes a handle made through [`crate::sys`].
    ///
    /// # Safety
    /// `raw` is a live tensor, whose memory lives for `'a`, and nothing else destroys it.
    pub unsafe fn from_raw(raw: *mut sys::qk_tensor) -> Tensor<'a> {
        Tensor { raw: NonNull::new(raw).expect("a live tensor"), memory: PhantomData }
    }

    /// The handle, for calls through [`crate::sys`]; it stays this tensor's.
    pub fn as_raw(&self) -> *mut sys::qk_tensor {
        self.raw.as_ptr()
    }

    /// What the tensor is, its grouping resolved.
    pub fn desc(&self) -> Result<Desc> {
        let mut desc = Desc::new(Format::F32, &[]);
        check(unsafe { sys::qk_tensor_describe(self.as_raw(), &mut desc.raw) })?;
        Ok(desc)
    }

    /// Fills a plane; `host` must have exactly its bytes.
    pub fn upload<T: Element>(
        &mut self,
        context: &Context,
        plane: Plane,
        host: &[T],
    ) -> Result<()> {
        context.check(unsafe {
            sys::qk_tensor_upload(
                context.as_raw(),
                self.as_raw(),
                plane.0,
                host.as_ptr() as *const c_void,
                size_of_val(host),
            )
        })
    }

    /// Copies a plane; `host` must have exactly its bytes.
    pub fn download<T: Element>(
        &self,
        context: &Context,
        plane: Plane,
        host: &mut [T],
    ) -> Result<()> {
        context.check(unsafe {
            sys::qk_tensor_download(
                context.as_raw(),
                self.as_raw(),
                plane.0,
                host.as_mut_ptr() as *mut c_void,
                size_of_val(host),
            )
        })
    }
}

impl Drop for Tensor<'_> {
    fn drop(&mut self) {
        unsafe { sys::qk_tensor_destroy(self.as_raw()) }
    }
}

fn dense_desc<T: Element>(shape: &[i64], length: usize) -> Result<Desc> {
    let format = T::FORMAT.ok_or_else(|| {
        let name = std::any::type_name::<T>();
        Error::new(Status::FORMAT, format!("memory: {name} is no dense format"))
    })?;
    let desc = Desc::new(format, shape);
    check_length("memory", length, desc.count())?;
    Ok(desc)
}

fn check_planes(desc: &Desc, lengths: impl Iterator<Item = usize>) -> Result<()> {
    for (plane, length) in lengths.enumerate() {
        let needed = desc.plane_bytes(Plane(plane as i32))?;
        if length != needed {
            let why = format!("planes[{plane}]: has {length} bytes, must have {needed}");
            return Err(Error::new(Status::BUFFER_SIZE, why));
        }
    }
    Ok(())
}

/// libqk wants NULL where there is no plane; an empty slice's address is not NULL.
fn address(pointer: *mut u8, length: usize) -> *mut c_void {
    if length == 0 {
        return null_mut();
    }
    pointer as *mut c_void
}

/// Slices are host memory, so the context must be the CPU's.
fn wrap<'a>(context: &Context, desc: &Desc, planes: &[*mut c_void]) -> Result<Tensor<'a>> {
    if context.device() != Device::CPU {
        let why = "memory: is the host's, and the context's device is not the CPU".to_string();
        return Err(Error::new(Status::DEVICE_MIX, why));
    }
    unsafe { Tensor::wrap(context, desc, planes) }
}
