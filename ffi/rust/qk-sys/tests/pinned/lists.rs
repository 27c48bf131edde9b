// Made by tests/ffi/lists.py from tests/abi/layout.json; do not edit.
fn core_facts(facts: &mut Facts) {
    pinned! { facts,
        constants {
            QK_ABI_VERSION, QK_ACTIVATION_GELU, QK_ACTIVATION_GELU_TANH, QK_ACTIVATION_NONE,
            QK_ACTIVATION_SILU, QK_ACTIVATION_SWIGLU_CLAMPED, QK_CONTEXT_BF16_PRODUCTS,
            QK_CONTEXT_INT8_ACTIVATIONS, QK_DEVICE_CPU, QK_DEVICE_CUDA, QK_ERROR_ABI,
            QK_ERROR_ARGUMENT, QK_ERROR_BUFFER_SIZE, QK_ERROR_CORRUPT, QK_ERROR_DEVICE_FAULT,
            QK_ERROR_DEVICE_MIX, QK_ERROR_FILE, QK_ERROR_FORMAT, QK_ERROR_INTERNAL,
            QK_ERROR_MEMORY, QK_ERROR_NO_DEVICE, QK_ERROR_NULL, QK_ERROR_SHAPE, QK_ERROR_STATE,
            QK_ERROR_UNSUPPORTED, QK_ERROR_WORKSPACE, QK_EXPERTS_INTERLEAVED, QK_FORMAT_BF16,
            QK_FORMAT_E4M3, QK_FORMAT_E8M0, QK_FORMAT_F16, QK_FORMAT_F32, QK_FORMAT_FP4_BNB,
            QK_FORMAT_FP4_E2M1, QK_FORMAT_FP4_GGML, QK_FORMAT_I16, QK_FORMAT_I32, QK_FORMAT_I8,
            QK_FORMAT_IQ4_NL, QK_FORMAT_LUT4, QK_FORMAT_LUT8, QK_FORMAT_NF4, QK_FORMAT_S8,
            QK_FORMAT_U4_AFFINE, QK_GROUPING_ALONG_K, QK_GROUPING_DEFAULT, QK_GROUPING_FLAT,
            QK_GROUP_ROW, QK_GRU_BIAS_CORRECTION, QK_GRU_BR, QK_GRU_BW, QK_GRU_CALIBRATE_MIN_MAX,
            QK_GRU_CALIBRATE_MOVING, QK_GRU_CALIBRATE_MSE, QK_GRU_H, QK_GRU_HEADROOM, QK_GRU_HH,
            QK_GRU_H_VIEW_8, QK_GRU_IH, QK_GRU_MODEL_CLAMP_TYPE, QK_GRU_NEW_IN, QK_GRU_NEW_OUT,
            QK_GRU_ORDER_RZN, QK_GRU_ORDER_ZRN, QK_GRU_R, QK_GRU_RESET_IN, QK_GRU_RESET_OUT,
            QK_GRU_TABLE_KNOTS, QK_GRU_TABLE_UNIFORM, QK_GRU_TENSOR_COUNT, QK_GRU_UNIFORM_TABLES,
            QK_GRU_UPDATE_IN, QK_GRU_UPDATE_OUT, QK_GRU_W, QK_GRU_W16A16, QK_GRU_W8A16,
            QK_GRU_W8A8, QK_GRU_W8H16, QK_GRU_X, QK_ISA_AMX_BF16, QK_ISA_AMX_INT8, QK_ISA_AVX2,
            QK_ISA_AVX512, QK_ISA_AVX512_BF16, QK_ISA_AVX512_VBMI, QK_ISA_AVX512_VNNI,
            QK_ISA_AVX_VNNI, QK_ISA_DOTPROD, QK_ISA_GENERIC, QK_ISA_I8MM, QK_ISA_NEON, QK_ISA_RVV,
            QK_LAYOUT_AWQ_GEMM, QK_LAYOUT_AWQ_GEMV, QK_LAYOUT_GGUF_IQ4_NL, QK_LAYOUT_GGUF_IQ4_XS,
            QK_LAYOUT_GGUF_MXFP4, QK_LAYOUT_GGUF_Q4_0, QK_LAYOUT_GGUF_Q4_1, QK_LAYOUT_GGUF_Q4_K,
            QK_LAYOUT_GGUF_Q5_0, QK_LAYOUT_GGUF_Q5_1, QK_LAYOUT_GGUF_Q5_K, QK_LAYOUT_GGUF_Q6_K,
            QK_LAYOUT_GGUF_Q8_0, QK_LAYOUT_GPTQ, QK_LAYOUT_GPTQ_V1, QK_LAYOUT_PACKED,
            QK_LAYOUT_ROW, QK_LAYOUT_ROW_HIGH, QK_LAYOUT_WORD, QK_MAX_RANK, QK_OK, QK_PLANE_COUNT,
            QK_PLANE_DATA, QK_PLANE_GLOBAL, QK_PLANE_MIN2, QK_PLANE_ORDER, QK_PLANE_SCALE,
            QK_PLANE_SCALE2, QK_PLANE_SCALE_BIAS, QK_PLANE_SCALE_CODE, QK_PLANE_TABLE,
            QK_PLANE_ZERO, QK_PRODUCT_ACCUMULATE, QK_PRODUCT_TRANSPOSED, QK_TENSOR_COLUMN_MAJOR,
            QK_TENSOR_FLOAT_MIN, QK_TENSOR_GLOBAL, QK_TENSOR_GLOBAL_DIVIDES,
            QK_TENSOR_GLOBAL_ROWS, QK_TENSOR_ORDERED, QK_TENSOR_READ_ONLY, QK_TENSOR_SYMMETRIC,
            QK_VERSION_MAJOR, QK_VERSION_MINOR, QK_VERSION_PATCH,
        }
        functions {
            qk_build_info, qk_context_create, qk_context_describe, qk_context_destroy,
            qk_context_error, qk_context_set_stream, qk_context_synchronize, qk_dequantize,
            qk_device_count, qk_dynamic_table, qk_explain, qk_gru_calibrate, qk_gru_create,
            qk_gru_create_from_model, qk_gru_describe, qk_gru_destroy, qk_gru_freeze,
            qk_gru_get_ranges, qk_gru_load, qk_gru_merge_ranges, qk_gru_run, qk_gru_run_float,
            qk_gru_run_gates, qk_gru_save, qk_gru_scale, qk_gru_set_quant, qk_gru_set_ranges,
            qk_gru_state_clipped, qk_gru_state_count_clipped, qk_gru_state_create,
            qk_gru_state_destroy, qk_gru_state_read, qk_gru_state_reset, qk_gru_state_write,
            qk_gru_workspace, qk_linear, qk_linear_workspace, qk_multiply, qk_multiply_workspace,
            qk_quantize, qk_repack, qk_status_string, qk_tensor_create, qk_tensor_describe,
            qk_tensor_destroy, qk_tensor_download, qk_tensor_from_dlpack, qk_tensor_plane_bytes,
            qk_tensor_to_dlpack, qk_tensor_upload, qk_tensor_wrap, qk_tensor_wrap_sized,
            qk_version,
        }
        struct qk_allocator {
            allocate, release, user,
        }
        struct qk_executor {
            parallel_for, user, concurrency,
        }
        struct qk_trace {
            struct_size, status, operation, kernel, shape, seconds,
        }
        struct qk_context_options {
            struct_size, abi_version, device, device_index, thread_count, flags, stream,
            workspace_bytes, allocator, executor, instruction_sets, reserved, trace, trace_user,
        }
        struct qk_context_info {
            struct_size, device, device_index, thread_count, flags, instruction_sets,
            workspace_bytes,
        }
        struct qk_tensor_desc {
            struct_size, format, scale_format, layout, group_size, grouping, scale_group_size,
            rank, flags, reserved, shape, row_stride,
        }
        struct qk_span {
            data, bytes,
        }
        struct qk_experts {
            struct_size, flags, expert, weight, activation, limit, alpha, reserved,
        }
        struct qk_product {
            struct_size, flags, x, w, bias, y, experts,
        }
        struct qk_plan {
            struct_size, batch_first, batch_last, reserved, workspace_bytes, kernel, reason,
        }
        struct qk_gru_quant {
            bits, is_unsigned, is_symmetric, granularity,
        }
        struct qk_gru_table {
            kind, count, shift, width_log2, first, reserved, threshold, slope, intercept,
        }
        struct qk_gru_model {
            struct_size, flags, input_size, hidden_size, h_view_shift, reserved, quant, shift,
            zero_point, w_shift, r_shift, bw_shift, br_shift, w, r, bw, br, update, reset,
            candidate,
        }
        struct qk_gru_config {
            struct_size, flags, input_size, hidden_size, gate_order, preset, calibration,
            reserved,
        }
        struct qk_gru_ranges {
            struct_size, reserved, samples, min, max, x_sum, h_sum,
        }
        struct qk_gru_clipped {
            struct_size, reserved, samples, codes,
        }
    }
}
#[cfg(feature = "io")]
fn io_facts(facts: &mut Facts) {
    pinned! { facts,
        constants {
            QK_CHECKPOINT_READ, QK_DIALECT_AWQ_GEMM, QK_DIALECT_AWQ_GEMV, QK_DIALECT_BITSANDBYTES,
            QK_DIALECT_COMPRESSED_TENSORS, QK_DIALECT_DEEPSEEK, QK_DIALECT_DENSE, QK_DIALECT_FP8,
            QK_DIALECT_GGUF, QK_DIALECT_GPTQ_V1, QK_DIALECT_GPTQ_V2, QK_DIALECT_GPT_OSS,
            QK_DIALECT_MODELOPT, QK_DIALECT_TORCHAO, QK_DIALECT_UNKNOWN, QK_DTYPE_BF16,
            QK_DTYPE_BOOL, QK_DTYPE_C64, QK_DTYPE_F16, QK_DTYPE_F32, QK_DTYPE_F4, QK_DTYPE_F64,
            QK_DTYPE_F6_E2M3, QK_DTYPE_F6_E3M2, QK_DTYPE_F8_E4M3, QK_DTYPE_F8_E5M2,
            QK_DTYPE_F8_E8M0, QK_DTYPE_GGUF, QK_DTYPE_I16, QK_DTYPE_I32, QK_DTYPE_I64,
            QK_DTYPE_I8, QK_DTYPE_U16, QK_DTYPE_U32, QK_DTYPE_U64, QK_DTYPE_U8, QK_DTYPE_UNKNOWN,
            QK_LOAD_IN_PLACE,
        }
        functions {
            qk_checkpoint_config_number, qk_checkpoint_config_text, qk_checkpoint_destroy,
            qk_checkpoint_expert_layer, qk_checkpoint_expert_layer_count,
            qk_checkpoint_find_expert_layer, qk_checkpoint_find_layer, qk_checkpoint_find_tensor,
            qk_checkpoint_layer, qk_checkpoint_layer_count, qk_checkpoint_layer_method,
            qk_checkpoint_load, qk_checkpoint_load_experts, qk_checkpoint_metadata,
            qk_checkpoint_metadata_count, qk_checkpoint_method, qk_checkpoint_open,
            qk_checkpoint_open_memory, qk_checkpoint_tensor, qk_checkpoint_tensor_count,
            qk_checkpoint_verify_layer, qk_checkpoint_write_config, qk_dialect_name,
            qk_dtype_name, qk_writer_append, qk_writer_append_config, qk_writer_bytes,
            qk_writer_create, qk_writer_declare, qk_writer_declare_layer, qk_writer_destroy,
            qk_writer_finish, qk_writer_finish_all, qk_writer_metadata, qk_writer_write,
            qk_writer_write_layer,
        }
        struct qk_io_message {
            text,
        }
        struct qk_checkpoint_options {
            struct_size, abi_version, flags, max_json_depth, max_header_bytes, max_tensors,
            allocator,
        }
        struct qk_file_tensor {
            name, dtype_name, dtype, rank, shape, bytes, data, file,
        }
        struct qk_layer {
            name, dialect, status, reason, has_bias, dense_format, bytes, desc,
        }
    }
}
