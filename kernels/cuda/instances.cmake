# The kernels whose instances are files of their own. An instance is a kernel, what its codes are
# (tile/problem.hpp) and the type of x; each is instance.cu.in, filled in.

# qk_cuda_instances(LIST KERNEL HEADER CODES <codes>... X <types>...): the instances of KERNEL, a
# class template that HEADER defines, as the paths of files in the variable LIST. A file each compiles
# side by side; with QK_CUDA_FEW_FILES they share one, whose headers are then read once.
function(qk_cuda_instances list kernel header)
  cmake_parse_arguments(PARSE_ARGV 3 arg "" "" "CODES;X")
  set(files "")
  set(instances "")
  foreach(codes IN LISTS arg_CODES)
    foreach(x IN LISTS arg_X)
      string(APPEND instances
             "template struct qk::cuda::${kernel}<qk::cuda::Codes::k${codes}, QK_FORMAT_${x}>;\n")
      set(file ${CMAKE_CURRENT_BINARY_DIR}/instances/${kernel}_${codes}_${x}.cu)
      if(NOT QK_CUDA_FEW_FILES)
        configure_file(${CMAKE_CURRENT_FUNCTION_LIST_DIR}/instance.cu.in ${file} @ONLY)
        list(APPEND files ${file})
        set(instances "")
      endif()
    endforeach()
  endforeach()
  if(QK_CUDA_FEW_FILES)
    set(files ${CMAKE_CURRENT_BINARY_DIR}/instances/${kernel}.cu)
    configure_file(${CMAKE_CURRENT_FUNCTION_LIST_DIR}/instance.cu.in ${files} @ONLY)
  endif()
  set(${list} ${files} PARENT_SCOPE)
endfunction()

set(sm90 cuda/linear/sm90)
qk_cuda_instances(gemv Gemv ${sm90}/gemv/launch.cuh CODES U4 Lut4 X F16 BF16 F32)
qk_cuda_instances(gemv_experts GemvExperts ${sm90}/gemv/experts.cuh CODES U4 Lut4 X F16 BF16)
qk_cuda_instances(gemv_siblings GemvSiblings ${sm90}/gemv/siblings.cuh CODES U4 Lut4 X F16 BF16)
qk_cuda_instances(gemv_rows GemvRows ${sm90}/gemv/rows.cuh CODES U4 Lut4 X F16 BF16)
qk_cuda_instances(few_rows FewRows ${sm90}/few_rows/kernel.cuh CODES U4 Lut4 X F16 BF16 F32)
qk_cuda_instances(cluster_rows ClusterRows ${sm90}/cluster_rows/kernel.cuh CODES U4 Lut4 X F16 BF16)
qk_cuda_instances(some_rows SomeRows ${sm90}/some_rows/kernel.cuh CODES U4 Lut4 X F16 BF16 F32)
qk_cuda_instances(rows_24 Rows24 ${sm90}/some_rows/kernel.cuh CODES U4 Lut4 X F16 BF16)
qk_cuda_instances(sm90_gemm Sm90Gemm ${sm90}/gemm/launch.cuh CODES U4 Lut4 S8 E4m3 Lut8 X F16 BF16)
qk_cuda_instances(gemm_transposed Sm90GemmTransposed ${sm90}/gemm/transposed.cuh CODES U4 Lut4 X F16 BF16)
qk_cuda_instances(gemm_experts GemmExperts ${sm90}/gemm/experts.cuh CODES U4 Lut4 X F16 BF16)
qk_cuda_instances(sm80_gemm Sm80Gemm cuda/linear/sm80/gemm/kernel.cuh CODES U4 Lut4 X F16 BF16)
