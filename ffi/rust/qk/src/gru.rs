use std::ffi::c_void;
use std::ptr::{null, null_mut, NonNull};

use crate::codes::code;
use crate::error::{check, check_length, Error, Result};
use crate::gru_model::{GruQuant, GruTensor, Model};
use crate::{sys, Context, Tensor};

code!(
    /// How wide the cell's tensors are.
    Preset {
        W8A8 = QK_GRU_W8A8, W8H16 = QK_GRU_W8H16, W8A16 = QK_GRU_W8A16,
        W16A16 = QK_GRU_W16A16,
    }
);
code!(
    /// How ranges are found from calibration data.
    Calibration {
        MIN_MAX = QK_GRU_CALIBRATE_MIN_MAX, MOVING = QK_GRU_CALIBRATE_MOVING,
        MSE = QK_GRU_CALIBRATE_MSE,
    }
);
code!(
    /// The order of the gates in the arrays given: RZN is PyTorch's.
    GateOrder { RZN = QK_GRU_ORDER_RZN, ZRN = QK_GRU_ORDER_ZRN }
);

/// Sizes and choices for a GRU to be quantized.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GruConfig {
    /// c: 1 to 65535.
    pub input_size: i32,
    /// h: 1 to 65535.
    pub hidden_size: i32,
    /// Of the arrays given.
    pub gate_order: GateOrder,
    /// Widths; single tensors are changed by [`TrainedGru::set_quant`].
    pub preset: Preset,
    /// How ranges are found.
    pub calibration: Calibration,
    /// [`GruConfig::UNIFORM_TABLES`] and its neighbours, or-ed.
    pub flags: u32,
}

impl GruConfig {
    /// Gate tables of the second kind: smoother, finer.
    pub const UNIFORM_TABLES: u32 = sys::QK_GRU_UNIFORM_TABLES as u32;
    /// Biases take back what rounding the weights lost on average.
    pub const BIAS_CORRECTION: u32 = sys::QK_GRU_BIAS_CORRECTION as u32;
    /// Twice the seen range where there are more than 8 bits.
    pub const HEADROOM: u32 = sys::QK_GRU_HEADROOM as u32;
    /// R multiplies the 8 high bits of a wider h.
    pub const H_VIEW_8: u32 = sys::QK_GRU_H_VIEW_8 as u32;

    /// PyTorch's gate order, the preset, ranges by minimum and maximum. Take [`Preset::W8H16`]
    /// unless there is a reason; qk.h says which there are.
    pub fn new(input_size: i32, hidden_size: i32, preset: Preset) -> GruConfig {
        GruConfig {
            input_size,
            hidden_size,
            gate_order: GateOrder::RZN,
            preset,
            calibration: Calibration::MIN_MAX,
            flags: 0,
        }
    }

    fn product(&self, factors: [i32; 2]) -> Option<usize> {
        let [a, b] = factors.map(|factor| usize::try_from(factor).ok());
        a?.checked_mul(3)?.checked_mul(b?)
    }
}

/// A float GRU that gathers ranges; one thread at a time, as its context.
///
/// ```compile_fail
/// fn shared<T: Sync>() {}
/// shared::<qk::TrainedGru>();
/// ```
pub struct TrainedGru {
    raw: NonNull<sys::qk_gru>,
    input_size: i32,
    hidden_size: i32,
}

unsafe impl Send for TrainedGru {}

/// [`TrainedGru::freeze`] was refused; the GRU is as it was.
pub struct FreezeError {
    /// As it was.
    pub gru: TrainedGru,
    /// Why.
    pub error: Error,
}

impl From<FreezeError> for Error {
    fn from(refused: FreezeError) -> Error {
        refused.error
    }
}

impl std::fmt::Debug for FreezeError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(out)
    }
}

impl TrainedGru {
    /// Copies w_ih `[3h,c]`, w_hh `[3h,h]` and the biases `[3h]`, if any.
    pub fn new(
        context: &Context,
        config: &GruConfig,
        w_ih: &[f32],
        w_hh: &[f32],
        b_ih: Option<&[f32]>,
        b_hh: Option<&[f32]>,
    ) -> Result<TrainedGru> {
        let (c, h) = (config.input_size, config.hidden_size);
        check_length("w_ih", w_ih.len(), config.product([h, c]))?;
        check_length("w_hh", w_hh.len(), config.product([h, h]))?;
        for (name, bias) in [("b_ih", b_ih), ("b_hh", b_hh)] {
            if let Some(bias) = bias {
                check_length(name, bias.len(), config.product([h, 1]))?;
            }
        }
        let raw_config = sys::qk_gru_config {
            struct_size: std::mem::size_of::<sys::qk_gru_config>() as u32,
            flags: config.flags,
            input_size: c,
            hidden_size: h,
            gate_order: config.gate_order.0,
            preset: config.preset.0,
            calibration: config.calibration.0,
            reserved: 0,
        };
        let mut out = null_mut();
        context.check(unsafe {
            sys::qk_gru_create(
                context.as_raw(),
                &raw_config,
                w_ih.as_ptr(),
                w_hh.as_ptr(),
                b_ih.map_or(null(), <[f32]>::as_ptr),
                b_hh.map_or(null(), <[f32]>::as_ptr),
                &mut out,
            )
        })?;
        let raw = NonNull::new(out).expect("libqk sets *out on QK_OK");
        Ok(TrainedGru { raw, input_size: c, hidden_size: h })
    }

    pub(crate) fn as_raw(&self) -> *mut sys::qk_gru {
        self.raw.as_ptr()
    }

    /// Input and hidden size; libqk has taken them.
    pub(crate) fn sizes(&self) -> [usize; 2] {
        [self.input_size as usize, self.hidden_size as usize]
    }

    /// Overrides the preset for one tensor.
    pub fn set_quant(&mut self, which: GruTensor, quant: GruQuant) -> Result<()> {
        check(unsafe { sys::qk_gru_set_quant(self.raw.as_ptr(), which.0, &quant.into()) })
    }

    /// Runs x `[t,b,c]` through the float GRU and widens the ranges seen; h0 is `[b,h]`.
    pub fn calibrate(
        &mut self,
        context: &Context,
        x: &Tensor<'_>,
        h0: Option<&[f32]>,
    ) -> Result<()> {
        let h0 = self.start(x, h0)?;
        context.check(unsafe {
            sys::qk_gru_calibrate(context.as_raw(), self.raw.as_ptr(), x.as_raw(), h0)
        })
    }

    /// The float GRU itself: x `[t,b,c]` to y `[t,b,h]`.
    pub fn run_float(
        &self,
        context: &Context,
        x: &Tensor<'_>,
        h0: Option<&[f32]>,
        y: &mut Tensor<'_>,
    ) -> Result<()> {
        let h0 = self.start(x, h0)?;
        let (gru, y) = (self.raw.as_ptr(), y.as_raw());
        context.check(unsafe { sys::qk_gru_run_float(context.as_raw(), gru, x.as_raw(), h0, y) })
    }

    /// Picks the exponents, quantizes, drops the floats.
    pub fn freeze(self, context: &Context) -> std::result::Result<Gru, FreezeError> {
        let status = unsafe { sys::qk_gru_freeze(context.as_raw(), self.raw.as_ptr()) };
        match context.check(status) {
            Ok(()) => {
                let raw = self.raw;
                std::mem::forget(self); // the handle is the frozen GRU's now
                Ok(Gru { raw })
            }
            Err(error) => Err(FreezeError { gru: self, error }),
        }
    }

    /// h0 as a pointer, once it has a value for each sequence of x and unit.
    fn start(&self, x: &Tensor<'_>, h0: Option<&[f32]>) -> Result<*const f32> {
        let h0 = match h0 {
            Some(h0) => h0,
            None => return Ok(null()),
        };
        let desc = x.desc()?;
        let batch = if let [_, batch, _] = *desc.shape() { batch } else { 1 };
        let needed = usize::try_from(batch).ok();
        let needed = needed.and_then(|batch| batch.checked_mul(self.hidden_size as usize));
        check_length("h0", h0.len(), needed)?;
        Ok(h0.as_ptr())
    }
}

impl Drop for TrainedGru {
    fn drop(&mut self) {
        unsafe { sys::qk_gru_destroy(self.raw.as_ptr()) }
    }
}

/// A frozen GRU: integers only, read-only, shared by any number of threads.
pub struct Gru {
    raw: NonNull<sys::qk_gru>,
}

unsafe impl Send for Gru {}
unsafe impl Sync for Gru {}

impl Gru {
    /// From integers made elsewhere; every claim is checked.
    pub fn from_model(context: &Context, model: &Model<'_>) -> Result<Gru> {
        let raw_model = model.to_raw()?;
        let mut out = null_mut();
        context.check(unsafe {
            sys::qk_gru_create_from_model(context.as_raw(), &raw_model, &mut out)
        })?;
        Ok(Gru { raw: NonNull::new(out).expect("libqk sets *out on QK_OK") })
    }

    /// What [`Gru::save`] gave; trusts nothing.
    pub fn load(context: &Context, image: &[u8]) -> Result<Gru> {
        let data = image.as_ptr() as *const c_void;
        let mut out = null_mut();
        context
            .check(unsafe { sys::qk_gru_load(context.as_raw(), data, image.len(), &mut out) })?;
        Ok(Gru { raw: NonNull::new(out).expect("libqk sets *out on QK_OK") })
    }

    /// The bytes that docs/gru.md lists.
    pub fn save(&self) -> Result<Vec<u8>> {
        let mut bytes = 0;
        check(unsafe { sys::qk_gru_save(self.as_raw(), null_mut(), 0, &mut bytes) })?;
        let mut image = vec![0u8; bytes];
        let buffer = image.as_mut_ptr() as *mut c_void;
        check(unsafe { sys::qk_gru_save(self.as_raw(), buffer, bytes, &mut bytes) })?;
        Ok(image)
    }

    /// The integers themselves, in place.
    pub fn model(&self) -> Result<Model<'_>> {
        let mut raw = std::mem::MaybeUninit::<sys::qk_gru_model>::zeroed();
        unsafe {
            (*raw.as_mut_ptr()).struct_size = std::mem::size_of::<sys::qk_gru_model>() as u32;
            check(sys::qk_gru_describe(self.as_raw(), raw.as_mut_ptr()))?;
            Ok(Model::from_raw(&raw.assume_init()))
        }
    }

    /// real = (code - zero_point) * 2^-shift; gives shift and zero point. Weights and biases have
    /// channels 0 to 3h-1 in the order u, r, n; the others have channel 0.
    pub fn scale(&self, which: GruTensor, channel: i32) -> Result<(i32, i32)> {
        let (mut shift, mut zero_point) = (0, 0);
        check(unsafe {
            sys::qk_gru_scale(self.as_raw(), which.0, channel, &mut shift, &mut zero_point)
        })?;
        Ok((shift, zero_point))
    }

    /// The state of `batch` sequences, at zero.
    pub fn state(&self, context: &Context, batch: i32) -> Result<GruState> {
        let hidden_size = self.model()?.hidden_size;
        let mut out = null_mut();
        context.check(unsafe {
            sys::qk_gru_state_create(context.as_raw(), self.as_raw(), batch, &mut out)
        })?;
        let raw = NonNull::new(out).expect("libqk sets *out on QK_OK");
        let values = batch as usize * hidden_size as usize;
        Ok(GruState { raw, values })
    }

    /// Advances the state by the t steps of x `[t,b,c]`; y is `[t,b,h]`.
    pub fn run(
        &self,
        context: &Context,
        state: &mut GruState,
        x: &Tensor<'_>,
        y: &mut Tensor<'_>,
    ) -> Result<()> {
        let (state, y) = (state.raw.as_ptr(), y.as_raw());
        context.check(unsafe {
            sys::qk_gru_run(context.as_raw(), self.as_raw(), state, x.as_raw(), y)
        })
    }

    /// The same, and what the gates were: `[t,b,4h]` holds u, r, n and R_n h + b.
    pub fn run_gates(
        &self,
        context: &Context,
        state: &mut GruState,
        x: &Tensor<'_>,
        y: &mut Tensor<'_>,
        gates: &mut Tensor<'_>,
    ) -> Result<()> {
        let (state, x, y, gates) = (state.raw.as_ptr(), x.as_raw(), y.as_raw(), gates.as_raw());
        context.check(unsafe {
            sys::qk_gru_run_gates(context.as_raw(), self.as_raw(), state, x, y, gates)
        })
    }

    /// Workspace bytes that [`Gru::run`] needs for up to `t_max` steps.
    pub fn workspace(&self, context: &Context, batch: i32, t_max: i64) -> Result<usize> {
        let mut bytes = 0;
        context.check(unsafe {
            sys::qk_gru_workspace(context.as_raw(), self.as_raw(), batch, t_max, &mut bytes)
        })?;
        Ok(bytes)
    }

    /// The handle, for calls through [`crate::sys`]; it stays this GRU's.
    pub fn as_raw(&self) -> *mut sys::qk_gru {
        self.raw.as_ptr()
    }
}

impl Drop for Gru {
    fn drop(&mut self) {
        unsafe { sys::qk_gru_destroy(self.as_raw()) }
    }
}

/// The hidden state of one batch of sequences; keeps its GRU alive.
pub struct GruState {
    raw: NonNull<sys::qk_gru_state>,
    values: usize, // batch * hidden
}

unsafe impl Send for GruState {}

impl GruState {
    pub(crate) fn as_raw(&self) -> *mut sys::qk_gru_state {
        self.raw.as_ptr()
    }

    /// To zero.
    pub fn reset(&mut self, context: &Context) -> Result<()> {
        context.check(unsafe { sys::qk_gru_state_reset(context.as_raw(), self.raw.as_ptr()) })
    }

    /// h `[b,h]`, rounded to the state's grid.
    pub fn write(&mut self, context: &Context, h: &[f32]) -> Result<()> {
        check_length("h", h.len(), Some(self.values))?;
        context.check(unsafe {
            sys::qk_gru_state_write(context.as_raw(), self.raw.as_ptr(), h.as_ptr())
        })
    }

    /// h `[b,h]`.
    pub fn read(&self, context: &Context, h: &mut [f32]) -> Result<()> {
        check_length("h", h.len(), Some(self.values))?;
        context.check(unsafe {
            sys::qk_gru_state_read(context.as_raw(), self.raw.as_ptr(), h.as_mut_ptr())
        })
    }
}

impl Drop for GruState {
    fn drop(&mut self) {
        unsafe { sys::qk_gru_state_destroy(self.raw.as_ptr()) }
    }
}
