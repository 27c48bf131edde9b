package qk

// #include <qk.h>
import "C"

// The header's codes. Values that this package does not name reach libqk and are answered there.
type (
	Status   int32 // see qk.h; 0 is no error
	Kind     int32 // the hundred of a status
	Device   int32
	Format   int32
	Layout   int32
	Grouping int32
	Plane    int32

	Activation int32 // how a product with experts joins gate and up
)

const (
	StatusNull        Status = C.QK_ERROR_NULL
	StatusShape       Status = C.QK_ERROR_SHAPE
	StatusFormat      Status = C.QK_ERROR_FORMAT
	StatusState       Status = C.QK_ERROR_STATE
	StatusDeviceMix   Status = C.QK_ERROR_DEVICE_MIX
	StatusBufferSize  Status = C.QK_ERROR_BUFFER_SIZE
	StatusABI         Status = C.QK_ERROR_ABI
	StatusArgument    Status = C.QK_ERROR_ARGUMENT
	StatusUnsupported Status = C.QK_ERROR_UNSUPPORTED
	StatusNoDevice    Status = C.QK_ERROR_NO_DEVICE
	StatusMemory      Status = C.QK_ERROR_MEMORY
	StatusWorkspace   Status = C.QK_ERROR_WORKSPACE
	StatusDeviceFault Status = C.QK_ERROR_DEVICE_FAULT
	StatusCorrupt     Status = C.QK_ERROR_CORRUPT
	StatusFile        Status = C.QK_ERROR_FILE
	StatusInternal    Status = C.QK_ERROR_INTERNAL
)

const (
	KindCall        Kind = 1 // the call is wrong; fix the caller
	KindUnsupported Kind = 2 // valid, but not in this build or on this device
	KindExhausted   Kind = 3 // out of memory or workspace
	KindDevice      Kind = 4 // the device failed; close the context
	KindStored      Kind = 5 // damaged bytes, or a file that cannot be read or written
	KindInternal    Kind = 9 // a bug in qk; please report it
)

const (
	DeviceCPU  Device = C.QK_DEVICE_CPU
	DeviceCUDA Device = C.QK_DEVICE_CUDA
)

const (
	FormatF32      Format = C.QK_FORMAT_F32
	FormatF16      Format = C.QK_FORMAT_F16
	FormatBF16     Format = C.QK_FORMAT_BF16
	FormatI8       Format = C.QK_FORMAT_I8
	FormatI16      Format = C.QK_FORMAT_I16
	FormatI32      Format = C.QK_FORMAT_I32
	FormatU4Affine Format = C.QK_FORMAT_U4_AFFINE
	FormatNF4      Format = C.QK_FORMAT_NF4
	FormatFP4BNB   Format = C.QK_FORMAT_FP4_BNB
	FormatFP4E2M1  Format = C.QK_FORMAT_FP4_E2M1
	FormatLUT8     Format = C.QK_FORMAT_LUT8
	FormatS8       Format = C.QK_FORMAT_S8
	FormatLUT4     Format = C.QK_FORMAT_LUT4
	FormatIQ4NL    Format = C.QK_FORMAT_IQ4_NL
	FormatFP4GGML  Format = C.QK_FORMAT_FP4_GGML
	FormatE4M3     Format = C.QK_FORMAT_E4M3
	FormatE8M0     Format = C.QK_FORMAT_E8M0 // of scales alone
)

const (
	LayoutRow       Layout = C.QK_LAYOUT_ROW
	LayoutRowHigh   Layout = C.QK_LAYOUT_ROW_HIGH
	LayoutAWQGemm   Layout = C.QK_LAYOUT_AWQ_GEMM
	LayoutAWQGemv   Layout = C.QK_LAYOUT_AWQ_GEMV
	LayoutGPTQ      Layout = C.QK_LAYOUT_GPTQ
	LayoutGPTQV1    Layout = C.QK_LAYOUT_GPTQ_V1
	LayoutWord      Layout = C.QK_LAYOUT_WORD
	LayoutGGUFQ40   Layout = C.QK_LAYOUT_GGUF_Q4_0
	LayoutGGUFQ41   Layout = C.QK_LAYOUT_GGUF_Q4_1
	LayoutGGUFQ50   Layout = C.QK_LAYOUT_GGUF_Q5_0
	LayoutGGUFQ51   Layout = C.QK_LAYOUT_GGUF_Q5_1
	LayoutGGUFQ80   Layout = C.QK_LAYOUT_GGUF_Q8_0
	LayoutGGUFQ4K   Layout = C.QK_LAYOUT_GGUF_Q4_K
	LayoutGGUFQ5K   Layout = C.QK_LAYOUT_GGUF_Q5_K
	LayoutGGUFQ6K   Layout = C.QK_LAYOUT_GGUF_Q6_K
	LayoutGGUFIQ4NL Layout = C.QK_LAYOUT_GGUF_IQ4_NL
	LayoutGGUFIQ4XS Layout = C.QK_LAYOUT_GGUF_IQ4_XS
	LayoutGGUFMXFP4 Layout = C.QK_LAYOUT_GGUF_MXFP4
	LayoutPacked    Layout = C.QK_LAYOUT_PACKED
)

const (
	GroupingDefault Grouping = C.QK_GROUPING_DEFAULT
	GroupingAlongK  Grouping = C.QK_GROUPING_ALONG_K
	GroupingFlat    Grouping = C.QK_GROUPING_FLAT
)

const (
	PlaneData      Plane = C.QK_PLANE_DATA
	PlaneScale     Plane = C.QK_PLANE_SCALE
	PlaneZero      Plane = C.QK_PLANE_ZERO
	PlaneScale2    Plane = C.QK_PLANE_SCALE2
	PlaneScaleCode Plane = C.QK_PLANE_SCALE_CODE
	PlaneScaleBias Plane = C.QK_PLANE_SCALE_BIAS
	PlaneTable     Plane = C.QK_PLANE_TABLE
	PlaneGlobal    Plane = C.QK_PLANE_GLOBAL
	PlaneMin2      Plane = C.QK_PLANE_MIN2
	PlaneOrder     Plane = C.QK_PLANE_ORDER
)

const (
	ActivationNone          Activation = C.QK_ACTIVATION_NONE
	ActivationSiLU          Activation = C.QK_ACTIVATION_SILU
	ActivationGELU          Activation = C.QK_ACTIVATION_GELU
	ActivationGELUTanh      Activation = C.QK_ACTIVATION_GELU_TANH
	ActivationSwiGLUClamped Activation = C.QK_ACTIVATION_SWIGLU_CLAMPED
)

const (
	GroupRow  = C.QK_GROUP_ROW // GroupSize: one group a row
	MaxRank   = C.QK_MAX_RANK
	ReadOnly  = uint32(C.QK_TENSOR_READ_ONLY)
	Symmetric = uint32(C.QK_TENSOR_SYMMETRIC) // U4Affine without zeros: every zero is 8

	Global        = uint32(C.QK_TENSOR_GLOBAL)         // E8M0 and E4M3 scales times one number
	GlobalRows    = uint32(C.QK_TENSOR_GLOBAL_ROWS)    // ... times one number a row
	GlobalDivides = uint32(C.QK_TENSOR_GLOBAL_DIVIDES) // with either: divided by it
	FloatMin      = uint32(C.QK_TENSOR_FLOAT_MIN)      // U4Affine, S8: code * scale - minimum
	Ordered       = uint32(C.QK_TENSOR_ORDERED)        // columns are stored in PlaneOrder's order
	ColumnMajor   = uint32(C.QK_TENSOR_COLUMN_MAJOR)   // dense: stored [k,n]; Dequantize's output
	planeCount    = C.QK_PLANE_COUNT

	BF16Products    = uint32(C.QK_CONTEXT_BF16_PRODUCTS) // may round x and 4-bit weights
	Int8Activations = uint32(C.QK_CONTEXT_INT8_ACTIVATIONS)
)

// Instruction sets: bits for Options.InstructionSets. Each counts with the one that it extends.
const (
	ISAGeneric    = uint32(C.QK_ISA_GENERIC) // portable code, always used
	ISAAVX2       = uint32(C.QK_ISA_AVX2)
	ISAAVXVNNI    = uint32(C.QK_ISA_AVX_VNNI) // extends AVX2; used in int8 mode
	ISAAVX512     = uint32(C.QK_ISA_AVX512)   // extends AVX2
	ISAAVX512VBMI = uint32(C.QK_ISA_AVX512_VBMI)
	ISAAVX512VNNI = uint32(C.QK_ISA_AVX512_VNNI)
	ISAAVX512BF16 = uint32(C.QK_ISA_AVX512_BF16)
	ISAAMXInt8    = uint32(C.QK_ISA_AMX_INT8) // extends AVX512; used in int8 mode
	ISAAMXBF16    = uint32(C.QK_ISA_AMX_BF16) // the same in bf16 mode, beside AVX512BF16
	ISANEON       = uint32(C.QK_ISA_NEON)
	ISADotProd    = uint32(C.QK_ISA_DOTPROD) // extends NEON
	ISAI8MM       = uint32(C.QK_ISA_I8MM)    // extends DotProd
	ISARVV        = uint32(C.QK_ISA_RVV)     // RISC-V's vectors
)
