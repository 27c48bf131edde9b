//! The header's codes as types. Each holds its number, so that a number that this crate does not
//! know reaches libqk and is answered with a status.
use crate::sys;

macro_rules! code {
    ($(#[$doc:meta])* $name:ident { $($constant:ident = $value:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub struct $name(pub i32);

        #[allow(missing_docs)] // qk.h explains them
        impl $name {
            $(pub const $constant: $name = $name(sys::$value);)*
        }
    };
}
pub(crate) use code;

code!(
    /// Where a context computes.
    Device { CPU = QK_DEVICE_CPU, CUDA = QK_DEVICE_CUDA }
);
code!(
    /// What a stored code means.
    Format {
        F32 = QK_FORMAT_F32, F16 = QK_FORMAT_F16, BF16 = QK_FORMAT_BF16,
        I8 = QK_FORMAT_I8, I16 = QK_FORMAT_I16, I32 = QK_FORMAT_I32,
        U4_AFFINE = QK_FORMAT_U4_AFFINE, NF4 = QK_FORMAT_NF4, FP4_BNB = QK_FORMAT_FP4_BNB,
        FP4_E2M1 = QK_FORMAT_FP4_E2M1, LUT8 = QK_FORMAT_LUT8, S8 = QK_FORMAT_S8,
        IQ4_NL = QK_FORMAT_IQ4_NL, FP4_GGML = QK_FORMAT_FP4_GGML,
        LUT4 = QK_FORMAT_LUT4, E4M3 = QK_FORMAT_E4M3, E8M0 = QK_FORMAT_E8M0,
    }
);
code!(
    /// Where a code is stored.
    Layout {
        ROW = QK_LAYOUT_ROW, ROW_HIGH = QK_LAYOUT_ROW_HIGH,
        AWQ_GEMM = QK_LAYOUT_AWQ_GEMM, AWQ_GEMV = QK_LAYOUT_AWQ_GEMV,
        GPTQ = QK_LAYOUT_GPTQ, GPTQ_V1 = QK_LAYOUT_GPTQ_V1, WORD = QK_LAYOUT_WORD,
        GGUF_Q4_0 = QK_LAYOUT_GGUF_Q4_0,
        GGUF_Q4_1 = QK_LAYOUT_GGUF_Q4_1,
        GGUF_Q5_0 = QK_LAYOUT_GGUF_Q5_0,
        GGUF_Q5_1 = QK_LAYOUT_GGUF_Q5_1,
        GGUF_Q8_0 = QK_LAYOUT_GGUF_Q8_0,
        GGUF_Q4_K = QK_LAYOUT_GGUF_Q4_K,
        GGUF_Q5_K = QK_LAYOUT_GGUF_Q5_K,
        GGUF_Q6_K = QK_LAYOUT_GGUF_Q6_K,
        GGUF_IQ4_NL = QK_LAYOUT_GGUF_IQ4_NL,
        GGUF_IQ4_XS = QK_LAYOUT_GGUF_IQ4_XS,
        GGUF_MXFP4 = QK_LAYOUT_GGUF_MXFP4,
        PACKED = QK_LAYOUT_PACKED,
    }
);
code!(
    /// Which codes share a scale.
    Grouping {
        DEFAULT = QK_GROUPING_DEFAULT, ALONG_K = QK_GROUPING_ALONG_K, FLAT = QK_GROUPING_FLAT,
    }
);
code!(
    /// One array of a tensor.
    Plane {
        DATA = QK_PLANE_DATA, SCALE = QK_PLANE_SCALE, ZERO = QK_PLANE_ZERO,
        SCALE2 = QK_PLANE_SCALE2, SCALE_CODE = QK_PLANE_SCALE_CODE,
        SCALE_BIAS = QK_PLANE_SCALE_BIAS, TABLE = QK_PLANE_TABLE,
        GLOBAL = QK_PLANE_GLOBAL, MIN2 = QK_PLANE_MIN2, ORDER = QK_PLANE_ORDER,
    }
);
code!(
    /// How a product with experts joins gate and up.
    Activation {
        NONE = QK_ACTIVATION_NONE, SILU = QK_ACTIVATION_SILU, GELU = QK_ACTIVATION_GELU,
        GELU_TANH = QK_ACTIVATION_GELU_TANH, SWIGLU_CLAMPED = QK_ACTIVATION_SWIGLU_CLAMPED,
    }
);
