// Made by bindgen.sh from qk_io.h; do not edit.
use crate::qk::*;

pub const QK_CHECKPOINT_READ: i32 = 1;
pub const QK_LOAD_IN_PLACE: i32 = 1;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct qk_checkpoint {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct qk_writer {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct qk_io_message {
    pub text: [::std::os::raw::c_char; 512usize],
}
pub type qk_dtype = i32;
pub const QK_DTYPE_UNKNOWN: i32 = 0;
pub const QK_DTYPE_BOOL: i32 = 1;
pub const QK_DTYPE_F4: i32 = 2;
pub const QK_DTYPE_F6_E2M3: i32 = 3;
pub const QK_DTYPE_F6_E3M2: i32 = 4;
pub const QK_DTYPE_U8: i32 = 5;
pub const QK_DTYPE_I8: i32 = 6;
pub const QK_DTYPE_F8_E5M2: i32 = 7;
pub const QK_DTYPE_F8_E4M3: i32 = 8;
pub const QK_DTYPE_F8_E8M0: i32 = 9;
pub const QK_DTYPE_I16: i32 = 10;
pub const QK_DTYPE_U16: i32 = 11;
pub const QK_DTYPE_F16: i32 = 12;
pub const QK_DTYPE_BF16: i32 = 13;
pub const QK_DTYPE_I32: i32 = 14;
pub const QK_DTYPE_U32: i32 = 15;
pub const QK_DTYPE_F32: i32 = 16;
pub const QK_DTYPE_C64: i32 = 17;
pub const QK_DTYPE_F64: i32 = 18;
pub const QK_DTYPE_I64: i32 = 19;
pub const QK_DTYPE_U64: i32 = 20;
pub const QK_DTYPE_GGUF: i32 = 64;
extern "C" {
    pub fn qk_dtype_name(dtype: qk_dtype) -> *const ::std::os::raw::c_char;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct qk_checkpoint_options {
    pub struct_size: u32,
    pub abi_version: u32,
    pub flags: u32,
    pub max_json_depth: i32,
    pub max_header_bytes: i64,
    pub max_tensors: i64,
    pub allocator: *const qk_allocator,
}
extern "C" {
    pub fn qk_checkpoint_open(
        path: *const ::std::os::raw::c_char,
        options: *const qk_checkpoint_options,
        out: *mut *mut qk_checkpoint,
        message: *mut qk_io_message,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_checkpoint_open_memory(
        bytes: *const ::std::os::raw::c_void,
        size_bytes: usize,
        config: *const ::std::os::raw::c_char,
        config_bytes: usize,
        options: *const qk_checkpoint_options,
        out: *mut *mut qk_checkpoint,
        message: *mut qk_io_message,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_checkpoint_destroy(checkpoint: *mut qk_checkpoint);
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct qk_file_tensor {
    pub name: *const ::std::os::raw::c_char,
    pub dtype_name: *const ::std::os::raw::c_char,
    pub dtype: qk_dtype,
    pub rank: i32,
    pub shape: *const i64,
    pub bytes: i64,
    pub data: *const ::std::os::raw::c_void,
    pub file: *const ::std::os::raw::c_char,
}
extern "C" {
    pub fn qk_checkpoint_tensor_count(checkpoint: *const qk_checkpoint) -> i64;
}
extern "C" {
    pub fn qk_checkpoint_tensor(
        checkpoint: *const qk_checkpoint,
        index: i64,
        tensor: *mut qk_file_tensor,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_checkpoint_find_tensor(
        checkpoint: *const qk_checkpoint,
        name: *const ::std::os::raw::c_char,
        tensor: *mut qk_file_tensor,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_checkpoint_metadata_count(checkpoint: *const qk_checkpoint) -> i64;
}
extern "C" {
    pub fn qk_checkpoint_metadata(
        checkpoint: *const qk_checkpoint,
        index: i64,
        key: *mut *const ::std::os::raw::c_char,
        value: *mut *const ::std::os::raw::c_char,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_checkpoint_config_number(
        checkpoint: *const qk_checkpoint,
        key: *const ::std::os::raw::c_char,
        value: *mut f64,
        message: *mut qk_io_message,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_checkpoint_config_text(
        checkpoint: *const qk_checkpoint,
        key: *const ::std::os::raw::c_char,
        text: *mut ::std::os::raw::c_char,
        capacity: usize,
        message: *mut qk_io_message,
    ) -> qk_status;
}
pub type qk_dialect = i32;
pub const QK_DIALECT_UNKNOWN: i32 = 0;
pub const QK_DIALECT_DENSE: i32 = 1;
pub const QK_DIALECT_AWQ_GEMM: i32 = 2;
pub const QK_DIALECT_AWQ_GEMV: i32 = 3;
pub const QK_DIALECT_GPTQ_V1: i32 = 4;
pub const QK_DIALECT_GPTQ_V2: i32 = 5;
pub const QK_DIALECT_COMPRESSED_TENSORS: i32 = 6;
pub const QK_DIALECT_BITSANDBYTES: i32 = 7;
pub const QK_DIALECT_GGUF: i32 = 8;
pub const QK_DIALECT_FP8: i32 = 9;
pub const QK_DIALECT_MODELOPT: i32 = 10;
pub const QK_DIALECT_GPT_OSS: i32 = 11;
pub const QK_DIALECT_DEEPSEEK: i32 = 12;
pub const QK_DIALECT_TORCHAO: i32 = 13;
extern "C" {
    pub fn qk_dialect_name(dialect: qk_dialect) -> *const ::std::os::raw::c_char;
}
#[repr(C)]
pub struct qk_layer {
    pub name: *const ::std::os::raw::c_char,
    pub dialect: qk_dialect,
    pub status: qk_status,
    pub reason: *const ::std::os::raw::c_char,
    pub has_bias: i32,
    pub dense_format: qk_format,
    pub bytes: i64,
    pub desc: qk_tensor_desc,
}
extern "C" {
    pub fn qk_checkpoint_layer_count(checkpoint: *const qk_checkpoint) -> i64;
}
extern "C" {
    pub fn qk_checkpoint_layer(
        checkpoint: *const qk_checkpoint,
        index: i64,
        layer: *mut qk_layer,
        layer_bytes: usize,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_checkpoint_find_layer(
        checkpoint: *const qk_checkpoint,
        name: *const ::std::os::raw::c_char,
        layer: *mut qk_layer,
        layer_bytes: usize,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_checkpoint_layer_method(
        checkpoint: *const qk_checkpoint,
        layer: *const ::std::os::raw::c_char,
    ) -> *const ::std::os::raw::c_char;
}
extern "C" {
    pub fn qk_checkpoint_method(
        checkpoint: *const qk_checkpoint,
        name: *mut *const ::std::os::raw::c_char,
        message: *mut qk_io_message,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_checkpoint_load(
        checkpoint: *const qk_checkpoint,
        context: *mut qk_context,
        layer: *const ::std::os::raw::c_char,
        flags: u32,
        weight: *mut *mut qk_tensor,
        bias: *mut *mut qk_tensor,
        message: *mut qk_io_message,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_checkpoint_verify_layer(
        checkpoint: *const qk_checkpoint,
        layer: *const ::std::os::raw::c_char,
        message: *mut qk_io_message,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_checkpoint_expert_layer_count(checkpoint: *const qk_checkpoint) -> i64;
}
extern "C" {
    pub fn qk_checkpoint_expert_layer(
        checkpoint: *const qk_checkpoint,
        index: i64,
        layer: *mut qk_layer,
        layer_bytes: usize,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_checkpoint_find_expert_layer(
        checkpoint: *const qk_checkpoint,
        name: *const ::std::os::raw::c_char,
        layer: *mut qk_layer,
        layer_bytes: usize,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_checkpoint_load_experts(
        checkpoint: *const qk_checkpoint,
        context: *mut qk_context,
        layer: *const ::std::os::raw::c_char,
        up: *const ::std::os::raw::c_char,
        flags: u32,
        weight: *mut *mut qk_tensor,
        bias: *mut *mut qk_tensor,
        message: *mut qk_io_message,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_writer_create(
        path: *const ::std::os::raw::c_char,
        allocator: *const qk_allocator,
        out: *mut *mut qk_writer,
        message: *mut qk_io_message,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_writer_destroy(writer: *mut qk_writer);
}
extern "C" {
    pub fn qk_writer_metadata(
        writer: *mut qk_writer,
        key: *const ::std::os::raw::c_char,
        value: *const ::std::os::raw::c_char,
        message: *mut qk_io_message,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_writer_declare(
        writer: *mut qk_writer,
        name: *const ::std::os::raw::c_char,
        dtype: qk_dtype,
        rank: i32,
        shape: *const i64,
        message: *mut qk_io_message,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_writer_write(
        writer: *mut qk_writer,
        name: *const ::std::os::raw::c_char,
        data: *const ::std::os::raw::c_void,
        bytes: usize,
        message: *mut qk_io_message,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_writer_bytes(writer: *const qk_writer) -> i64;
}
extern "C" {
    pub fn qk_writer_append(
        writer: *mut qk_writer,
        data: *const ::std::os::raw::c_void,
        bytes: usize,
        message: *mut qk_io_message,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_writer_finish(writer: *mut qk_writer, message: *mut qk_io_message) -> qk_status;
}
extern "C" {
    pub fn qk_writer_finish_all(
        writers: *const *mut qk_writer,
        writer_count: i64,
        removed: *const *const ::std::os::raw::c_char,
        removed_count: i64,
        message: *mut qk_io_message,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_writer_declare_layer(
        writer: *mut qk_writer,
        dialect: qk_dialect,
        layer: *const ::std::os::raw::c_char,
        desc: *const qk_tensor_desc,
        dense_format: qk_format,
        message: *mut qk_io_message,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_writer_write_layer(
        writer: *mut qk_writer,
        context: *mut qk_context,
        layer: *const ::std::os::raw::c_char,
        tensor: *const qk_tensor,
        message: *mut qk_io_message,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_writer_append_config(
        writer: *mut qk_writer,
        from: *const qk_checkpoint,
        dialect: qk_dialect,
        desc: *const qk_tensor_desc,
        dense_format: qk_format,
        kept: *const *const ::std::os::raw::c_char,
        kept_count: i64,
        message: *mut qk_io_message,
    ) -> qk_status;
}
extern "C" {
    pub fn qk_checkpoint_write_config(
        from: *const qk_checkpoint,
        path: *const ::std::os::raw::c_char,
        dialect: qk_dialect,
        desc: *const qk_tensor_desc,
        dense_format: qk_format,
        kept: *const *const ::std::os::raw::c_char,
        kept_count: i64,
        message: *mut qk_io_message,
    ) -> qk_status;
}
