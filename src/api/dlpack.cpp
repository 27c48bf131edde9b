#include "object/dlpack.hpp"

#include "api/check.hpp"

extern "C" {

qk_status qk_tensor_from_dlpack(qk_context *context, DLManagedTensorVersioned *managed,
                                qk_tensor **out) {
    QK_API_CONTEXT(context);
    QK_API_POINTER(context, managed);
    QK_API_POINTER(context, out);
    return qk::tensor_from_dlpack(context, managed, out);
}

qk_status qk_tensor_to_dlpack(qk_tensor *tensor, qk_plane plane, DLManagedTensorVersioned **out) {
    QK_TRY(qk::check_tensor(tensor));
    QK_TRY(qk::check_reach(tensor->context));
    QK_API_POINTER(tensor->context, out);
    return qk::tensor_to_dlpack(tensor, plane, out);
}

}  // extern "C"
