// Made by bindgen.sh from qk.h; do not edit.
pub const QK_VERSION_MAJOR: i32 = 0;
pub const QK_VERSION_MINOR: i32 = 1;
pub const QK_VERSION_PATCH: i32 = 0;
pub const QK_ABI_VERSION: i32 = 1;
pub const QK_CONTEXT_BF16_PRODUCTS: i32 = 1;
pub const QK_CONTEXT_INT8_ACTIVATIONS: i32 = 2;
pub const QK_ISA_GENERIC: i32 = 1;
pub const QK_ISA_AVX2: i32 = 2;
pub const QK_ISA_AVX512: i32 = 4;
pub const QK_ISA_AVX512_VBMI: i32 = 8;
pub const QK_ISA_AVX512_VNNI: i32 = 16;
pub const QK_ISA_AVX512_BF16: i32 = 32;
pub const QK_ISA_AMX_INT8: i32 = 64;
pub const QK_ISA_AMX_BF16: i32 = 128;
pub const QK_ISA_AVX_VNNI: i32 = 256;
pub const QK_ISA_NEON: i32 = 65536;
pub const QK_ISA_DOTPROD: i32 = 131072;
pub const QK_ISA_I8MM: i32 = 262144;
pub const QK_ISA_RVV: i32 = 16777216;
pub const QK_MAX_RANK: i32 = 4;
pub const QK_GROUP_ROW: i32 = -1;
pub const QK_TENSOR_READ_ONLY: i32 = 1;
pub const QK_TENSOR_SYMMETRIC: i32 = 2;
pub const QK_TENSOR_GLOBAL: i32 = 4;
pub const QK_TENSOR_GLOBAL_ROWS: i32 = 8;
pub const QK_TENSOR_GLOBAL_DIVIDES: i32 = 16;
pub const QK_TENSOR_FLOAT_MIN: i32 = 32;
pub const QK_TENSOR_ORDERED: i32 = 64;
pub const QK_TENSOR_COLUMN_MAJOR: i32 = 128;
pub const QK_EXPERTS_INTERLEAVED: i32 = 1;
pub const QK_PRODUCT_TRANSPOSED: i32 = 1;
pub const QK_PRODUCT_ACCUMULATE: i32 = 2;
pub const QK_GRU_UNIFORM_TABLES: i32 = 1;
pub const QK_GRU_BIAS_CORRECTION: i32 = 2;
pub const QK_GRU_HEADROOM: i32 = 4;
pub const QK_GRU_H_VIEW_8: i32 = 8;
pub const QK_GRU_MODEL_CLAMP_TYPE: i32 = 1;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct qk_context {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct qk_tensor {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct qk_gru {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct qk_gru_state {
    _unused: [u8; 0],
}
pub type qk_status = i32;
pub const QK_OK: i32 = 0;
pub const QK_ERROR_NULL: i32 = 101;
pub const QK_ERROR_SHAPE: i32 = 102;
pub const QK_ERROR_FORMAT: i32 = 103;
pub const QK_ERROR_STATE: i32 = 104;
pub const QK_ERROR_DEVICE_MIX: i32 = 105;
pub const QK_ERROR_BUFFER_SIZE: i32 = 106;
pub const QK_ERROR_ABI: i32 = 107;
pub const QK_ERROR_ARGUMENT: i32 = 108;
pub const QK_ERROR_UNSUPPORTED: i32 = 201;
pub const QK_ERROR_NO_DEVICE: i32 = 202;
pub const QK_ERROR_MEMORY: i32 = 301;
pub const QK_ERROR_WORKSPACE: i32 = 302;
pub const QK_ERROR_DEVICE_FAULT: i32 = 401;
pub const QK_ERROR_CORRUPT: i32 = 501;
pub const QK_ERROR_FILE: i32 = 502;
pub const QK_ERROR_INTERNAL: i32 = 901;
extern "C" {
    pub fn qk_status_string(status: qk_status) -> *const ::std::os::raw::c_char;
}
extern "C" {
    pub fn qk_version() -> u32;
}
extern "C" {
    pub fn qk_build_info() -> *const ::std::os::raw::c_char;
}
pub type qk_device = i32;
pub const QK_DEVICE_CPU: i32 = 1;
pub const QK_DEVICE_CUDA: i32 = 2;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct qk_allocator {
    pub allocate: ::std::option::Option<
        unsafe extern "C" fn(
            user: *mut ::std::os::raw::c_void,
            size_bytes: usize,
            align_bytes: usize,
        ) -> *mut ::std::os::raw::c_void,
    >,
    pub release: ::std::option::Option<
        unsafe extern "C" fn(
            user: *mut ::std::os::raw::c_void,
            pointer: *mut ::std::os::raw::c_void,
        ),
    >,
    pub user: *mut ::std::os::raw::c_void,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct qk_executor {
    pub parallel_for: ::std::option::Option<
        unsafe extern "C" fn(
            user: *mut ::std::os::raw::c_void,
            task_count: i32,
            task: ::std::option::Option<
                unsafe extern "C" fn(argument: *mut ::std::os::raw::c_void, index: i32),
            >,
            argument: *mut ::std::os::raw::c_void,
        ),
    >,
    pub user: *mut ::std::os::raw::c_void,
    pub concurrency: i32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct qk_trace {
    pub struct_size: u32,
    pub status: qk_status,
    pub operation: *const ::std::os::raw::c_char,
    pub kernel: *const ::std::os::raw::c_char,
    pub shape: [i64; 4usize],
    pub seconds: f64,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct qk_context_options {
    pub struct_size: u32,
    pub abi_version: u32,
    pub device: qk_device,
    pub device_index: i32,
    pub thread_count: i32,
    pub flags: u32,
    pub stream: *mut ::std::os::raw::c_void,
    pub workspace_bytes: usize,
    pub allocator: *const qk_allocator,
    pub executor: *const qk_executor,
    pub instruction_sets: u32,
    pub reserved: u32,
    pub trace: ::std::option::Option<
        unsafe extern "C" fn(user: *mut ::std::os::raw::c_void, call: *const qk_trace),
    >,
    pub trace_user: *mut ::std::os::raw::c_void,
}
extern "C" {
    pub fn qk_device_count(device: qk_device, count: *mut i32) -> qk_status;
}
extern "C" {
    pub fn qk_context_create(
        options: *const qk_context_options,
        out: *mut *mut qk_context,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_context_destroy(context: *mut qk_context);
}
extern "C" {
    pub fn qk_context_set_stream(
        context: *mut qk_context,
        stream: *mut ::std::os::raw::c_void,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_context_synchronize(context: *mut qk_context) -> qk_status;
}
extern "C" {
    pub fn qk_context_error(context: *const qk_context) -> *const ::std::os::raw::c_char;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct qk_context_info {
    pub struct_size: u32,
    pub device: qk_device,
    pub device_index: i32,
    pub thread_count: i32,
    pub flags: u32,
    pub instruction_sets: u32,
    pub workspace_bytes: usize,
}
extern "C" {
    pub fn qk_context_describe(context: *const qk_context, info: *mut qk_context_info)
        -> qk_status;
}
pub type qk_format = i32;
pub const QK_FORMAT_F32: i32 = 1;
pub const QK_FORMAT_F16: i32 = 2;
pub const QK_FORMAT_BF16: i32 = 3;
pub const QK_FORMAT_I8: i32 = 4;
pub const QK_FORMAT_I16: i32 = 5;
pub const QK_FORMAT_I32: i32 = 6;
pub const QK_FORMAT_U4_AFFINE: i32 = 16;
pub const QK_FORMAT_NF4: i32 = 17;
pub const QK_FORMAT_FP4_BNB: i32 = 18;
pub const QK_FORMAT_FP4_E2M1: i32 = 19;
pub const QK_FORMAT_LUT4: i32 = 20;
pub const QK_FORMAT_IQ4_NL: i32 = 21;
pub const QK_FORMAT_FP4_GGML: i32 = 22;
pub const QK_FORMAT_LUT8: i32 = 24;
pub const QK_FORMAT_S8: i32 = 25;
pub const QK_FORMAT_E4M3: i32 = 26;
pub const QK_FORMAT_E8M0: i32 = 27;
pub type qk_layout = i32;
pub const QK_LAYOUT_ROW: i32 = 0;
pub const QK_LAYOUT_ROW_HIGH: i32 = 1;
pub const QK_LAYOUT_AWQ_GEMM: i32 = 2;
pub const QK_LAYOUT_AWQ_GEMV: i32 = 3;
pub const QK_LAYOUT_GPTQ: i32 = 4;
pub const QK_LAYOUT_GPTQ_V1: i32 = 5;
pub const QK_LAYOUT_WORD: i32 = 6;
pub const QK_LAYOUT_GGUF_Q4_0: i32 = 34;
pub const QK_LAYOUT_GGUF_Q4_1: i32 = 35;
pub const QK_LAYOUT_GGUF_Q5_0: i32 = 38;
pub const QK_LAYOUT_GGUF_Q5_1: i32 = 39;
pub const QK_LAYOUT_GGUF_Q8_0: i32 = 40;
pub const QK_LAYOUT_GGUF_Q4_K: i32 = 44;
pub const QK_LAYOUT_GGUF_Q5_K: i32 = 45;
pub const QK_LAYOUT_GGUF_Q6_K: i32 = 46;
pub const QK_LAYOUT_GGUF_IQ4_NL: i32 = 52;
pub const QK_LAYOUT_GGUF_IQ4_XS: i32 = 55;
pub const QK_LAYOUT_GGUF_MXFP4: i32 = 71;
pub const QK_LAYOUT_PACKED: i32 = 99;
pub type qk_grouping = i32;
pub const QK_GROUPING_DEFAULT: i32 = 0;
pub const QK_GROUPING_ALONG_K: i32 = 1;
pub const QK_GROUPING_FLAT: i32 = 2;
pub type qk_plane = i32;
pub const QK_PLANE_DATA: i32 = 0;
pub const QK_PLANE_SCALE: i32 = 1;
pub const QK_PLANE_ZERO: i32 = 2;
pub const QK_PLANE_SCALE2: i32 = 3;
pub const QK_PLANE_SCALE_CODE: i32 = 4;
pub const QK_PLANE_SCALE_BIAS: i32 = 5;
pub const QK_PLANE_TABLE: i32 = 6;
pub const QK_PLANE_GLOBAL: i32 = 7;
pub const QK_PLANE_MIN2: i32 = 8;
pub const QK_PLANE_ORDER: i32 = 9;
pub const QK_PLANE_COUNT: i32 = 10;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct qk_tensor_desc {
    pub struct_size: u32,
    pub format: qk_format,
    pub scale_format: qk_format,
    pub layout: qk_layout,
    pub group_size: i32,
    pub grouping: qk_grouping,
    pub scale_group_size: i32,
    pub rank: i32,
    pub flags: u32,
    pub reserved: u32,
    pub shape: [i64; 4usize],
    pub row_stride: i64,
}
extern "C" {
    pub fn qk_tensor_plane_bytes(
        desc: *const qk_tensor_desc,
        plane: qk_plane,
        bytes: *mut usize,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_tensor_create(
        context: *mut qk_context,
        desc: *const qk_tensor_desc,
        out: *mut *mut qk_tensor,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_tensor_wrap(
        context: *mut qk_context,
        desc: *const qk_tensor_desc,
        planes: *const *mut ::std::os::raw::c_void,
        plane_count: i32,
        out: *mut *mut qk_tensor,
    ) -> qk_status;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct qk_span {
    pub data: *mut ::std::os::raw::c_void,
    pub bytes: usize,
}
extern "C" {
    pub fn qk_tensor_wrap_sized(
        context: *mut qk_context,
        desc: *const qk_tensor_desc,
        planes: *const qk_span,
        plane_count: i32,
        out: *mut *mut qk_tensor,
    ) -> qk_status;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct DLManagedTensorVersioned {
    _unused: [u8; 0],
}
extern "C" {
    pub fn qk_tensor_from_dlpack(
        context: *mut qk_context,
        managed: *mut DLManagedTensorVersioned,
        out: *mut *mut qk_tensor,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_tensor_to_dlpack(
        tensor: *mut qk_tensor,
        plane: qk_plane,
        out: *mut *mut DLManagedTensorVersioned,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_tensor_describe(tensor: *const qk_tensor, desc: *mut qk_tensor_desc) -> qk_status;
}
extern "C" {
    pub fn qk_tensor_upload(
        context: *mut qk_context,
        tensor: *mut qk_tensor,
        plane: qk_plane,
        host: *const ::std::os::raw::c_void,
        bytes: usize,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_tensor_download(
        context: *mut qk_context,
        tensor: *const qk_tensor,
        plane: qk_plane,
        host: *mut ::std::os::raw::c_void,
        bytes: usize,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_tensor_destroy(tensor: *mut qk_tensor);
}
extern "C" {
    pub fn qk_quantize(
        context: *mut qk_context,
        dense: *const qk_tensor,
        quantized: *mut qk_tensor,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_dequantize(
        context: *mut qk_context,
        quantized: *const qk_tensor,
        dense: *mut qk_tensor,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_repack(
        context: *mut qk_context,
        from: *const qk_tensor,
        to: *mut qk_tensor,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_linear(
        context: *mut qk_context,
        x: *const qk_tensor,
        w: *const qk_tensor,
        bias: *const qk_tensor,
        y: *mut qk_tensor,
    ) -> qk_status;
}
pub type qk_activation = i32;
pub const QK_ACTIVATION_NONE: i32 = 0;
pub const QK_ACTIVATION_SILU: i32 = 1;
pub const QK_ACTIVATION_GELU: i32 = 2;
pub const QK_ACTIVATION_GELU_TANH: i32 = 3;
pub const QK_ACTIVATION_SWIGLU_CLAMPED: i32 = 4;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct qk_experts {
    pub struct_size: u32,
    pub flags: u32,
    pub expert: *const qk_tensor,
    pub weight: *const qk_tensor,
    pub activation: qk_activation,
    pub limit: f32,
    pub alpha: f32,
    pub reserved: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct qk_product {
    pub struct_size: u32,
    pub flags: u32,
    pub x: *const qk_tensor,
    pub w: *const qk_tensor,
    pub bias: *const qk_tensor,
    pub y: *mut qk_tensor,
    pub experts: *const qk_experts,
}
extern "C" {
    pub fn qk_multiply(
        context: *mut qk_context,
        products: *const qk_product,
        count: i32,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_multiply_workspace(
        context: *mut qk_context,
        products: *const qk_product,
        count: i32,
        bytes: *mut usize,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_linear_workspace(
        context: *mut qk_context,
        w: *const qk_tensor,
        m_max: i64,
        bytes: *mut usize,
    ) -> qk_status;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct qk_plan {
    pub struct_size: u32,
    pub batch_first: i32,
    pub batch_last: i32,
    pub reserved: i32,
    pub workspace_bytes: usize,
    pub kernel: *const ::std::os::raw::c_char,
    pub reason: [::std::os::raw::c_char; 192usize],
}
extern "C" {
    pub fn qk_explain(
        context: *mut qk_context,
        product: *const qk_product,
        plan: *mut qk_plan,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_dynamic_table(table: *mut f32) -> qk_status;
}
pub const QK_GRU_ORDER_RZN: i32 = 0;
pub const QK_GRU_ORDER_ZRN: i32 = 1;
pub type qk_gru_tensor = i32;
pub const QK_GRU_X: i32 = 0;
pub const QK_GRU_H: i32 = 1;
pub const QK_GRU_W: i32 = 2;
pub const QK_GRU_R: i32 = 3;
pub const QK_GRU_BW: i32 = 4;
pub const QK_GRU_BR: i32 = 5;
pub const QK_GRU_IH: i32 = 6;
pub const QK_GRU_HH: i32 = 7;
pub const QK_GRU_UPDATE_IN: i32 = 8;
pub const QK_GRU_UPDATE_OUT: i32 = 9;
pub const QK_GRU_RESET_IN: i32 = 10;
pub const QK_GRU_RESET_OUT: i32 = 11;
pub const QK_GRU_NEW_IN: i32 = 12;
pub const QK_GRU_NEW_OUT: i32 = 13;
pub const QK_GRU_TENSOR_COUNT: i32 = 14;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct qk_gru_quant {
    pub bits: i32,
    pub is_unsigned: i32,
    pub is_symmetric: i32,
    pub granularity: i32,
}
pub type qk_gru_preset = i32;
pub const QK_GRU_W8A8: i32 = 0;
pub const QK_GRU_W8H16: i32 = 1;
pub const QK_GRU_W8A16: i32 = 2;
pub const QK_GRU_W16A16: i32 = 3;
pub type qk_gru_calibration = i32;
pub const QK_GRU_CALIBRATE_MIN_MAX: i32 = 0;
pub const QK_GRU_CALIBRATE_MOVING: i32 = 1;
pub const QK_GRU_CALIBRATE_MSE: i32 = 2;
pub type qk_gru_table_kind = i32;
pub const QK_GRU_TABLE_KNOTS: i32 = 1;
pub const QK_GRU_TABLE_UNIFORM: i32 = 2;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct qk_gru_table {
    pub kind: qk_gru_table_kind,
    pub count: i32,
    pub shift: i32,
    pub width_log2: i32,
    pub first: i32,
    pub reserved: i32,
    pub threshold: *const i32,
    pub slope: *const i32,
    pub intercept: *const i32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct qk_gru_model {
    pub struct_size: u32,
    pub flags: u32,
    pub input_size: i32,
    pub hidden_size: i32,
    pub h_view_shift: i32,
    pub reserved: i32,
    pub quant: [qk_gru_quant; 14usize],
    pub shift: [i32; 14usize],
    pub zero_point: [i32; 14usize],
    pub w_shift: *const i8,
    pub r_shift: *const i8,
    pub bw_shift: *const i8,
    pub br_shift: *const i8,
    pub w: *const ::std::os::raw::c_void,
    pub r: *const ::std::os::raw::c_void,
    pub bw: *const i32,
    pub br: *const i32,
    pub update: qk_gru_table,
    pub reset: qk_gru_table,
    pub candidate: qk_gru_table,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct qk_gru_config {
    pub struct_size: u32,
    pub flags: u32,
    pub input_size: i32,
    pub hidden_size: i32,
    pub gate_order: i32,
    pub preset: qk_gru_preset,
    pub calibration: qk_gru_calibration,
    pub reserved: i32,
}
extern "C" {
    pub fn qk_gru_create(
        context: *mut qk_context,
        config: *const qk_gru_config,
        w_ih: *const f32,
        w_hh: *const f32,
        b_ih: *const f32,
        b_hh: *const f32,
        out: *mut *mut qk_gru,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_gru_set_quant(
        gru: *mut qk_gru,
        which: qk_gru_tensor,
        quant: *const qk_gru_quant,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_gru_calibrate(
        context: *mut qk_context,
        gru: *mut qk_gru,
        x: *const qk_tensor,
        h0: *const f32,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_gru_run_float(
        context: *mut qk_context,
        gru: *const qk_gru,
        x: *const qk_tensor,
        h0: *const f32,
        y: *mut qk_tensor,
    ) -> qk_status;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct qk_gru_ranges {
    pub struct_size: u32,
    pub reserved: u32,
    pub samples: i64,
    pub min: [f64; 14usize],
    pub max: [f64; 14usize],
    pub x_sum: *mut f64,
    pub h_sum: *mut f64,
}
extern "C" {
    pub fn qk_gru_get_ranges(
        context: *mut qk_context,
        gru: *const qk_gru,
        ranges: *mut qk_gru_ranges,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_gru_set_ranges(
        context: *mut qk_context,
        gru: *mut qk_gru,
        ranges: *const qk_gru_ranges,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_gru_merge_ranges(
        context: *mut qk_context,
        gru: *mut qk_gru,
        ranges: *const qk_gru_ranges,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_gru_freeze(context: *mut qk_context, gru: *mut qk_gru) -> qk_status;
}
extern "C" {
    pub fn qk_gru_create_from_model(
        context: *mut qk_context,
        model: *const qk_gru_model,
        out: *mut *mut qk_gru,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_gru_describe(gru: *const qk_gru, model: *mut qk_gru_model) -> qk_status;
}
extern "C" {
    pub fn qk_gru_scale(
        gru: *const qk_gru,
        which: qk_gru_tensor,
        channel: i32,
        shift: *mut i32,
        zero_point: *mut i32,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_gru_state_create(
        context: *mut qk_context,
        gru: *const qk_gru,
        batch: i32,
        out: *mut *mut qk_gru_state,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_gru_state_reset(context: *mut qk_context, state: *mut qk_gru_state) -> qk_status;
}
extern "C" {
    pub fn qk_gru_state_write(
        context: *mut qk_context,
        state: *mut qk_gru_state,
        h: *const f32,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_gru_state_read(
        context: *mut qk_context,
        state: *const qk_gru_state,
        h: *mut f32,
    ) -> qk_status;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct qk_gru_clipped {
    pub struct_size: u32,
    pub reserved: u32,
    pub samples: i64,
    pub codes: [i64; 14usize],
}
extern "C" {
    pub fn qk_gru_state_count_clipped(
        context: *mut qk_context,
        state: *mut qk_gru_state,
        on: i32,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_gru_state_clipped(
        context: *mut qk_context,
        state: *const qk_gru_state,
        clipped: *mut qk_gru_clipped,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_gru_state_destroy(state: *mut qk_gru_state);
}
extern "C" {
    pub fn qk_gru_run(
        context: *mut qk_context,
        gru: *const qk_gru,
        state: *mut qk_gru_state,
        x: *const qk_tensor,
        y: *mut qk_tensor,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_gru_run_gates(
        context: *mut qk_context,
        gru: *const qk_gru,
        state: *mut qk_gru_state,
        x: *const qk_tensor,
        y: *mut qk_tensor,
        gates: *mut qk_tensor,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_gru_workspace(
        context: *mut qk_context,
        gru: *const qk_gru,
        batch: i32,
        t_max: i64,
        bytes: *mut usize,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_gru_save(
        gru: *const qk_gru,
        buffer: *mut ::std::os::raw::c_void,
        capacity: usize,
        bytes: *mut usize,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_gru_load(
        context: *mut qk_context,
        data: *const ::std::os::raw::c_void,
        bytes: usize,
        out: *mut *mut qk_gru,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_gru_destroy(gru: *mut qk_gru);
}
