# SPDX-License-Identifier: Apache-2.0
# The module nccl: C over NCCL and the CUDA runtime, and one file of kernels for nvcc. CUDA is found
# by CMake's own means (CUDACXX, CUDAToolkit_ROOT), NCCL by NCCL_ROOT: a folder with include/nccl.h
# and lib/libnccl.so.2, such as that of the Python package nvidia-nccl-cu13.
if(NOT CMAKE_CUDA_ARCHITECTURES)
    # Turing to Hopper as machine code, and code for what comes later
    set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 89-real 90)
endif()
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(CMAKE_CUDA_COMPILER nvcc PATHS /usr/local/cuda/bin)
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
find_path(MSDU_NCCL_INCLUDE_DIR nccl.h HINTS ${NCCL_ROOT}/include $ENV{NCCL_ROOT}/include)
find_library(MSDU_NCCL_LIBRARY NAMES libnccl.so.2 nccl HINTS ${NCCL_ROOT}/lib $ENV{NCCL_ROOT}/lib)
if(NOT MSDU_NCCL_INCLUDE_DIR OR NOT MSDU_NCCL_LIBRARY)
    message(FATAL_ERROR "NCCL not found: set NCCL_ROOT (or set MSDU_WITH_NCCL=OFF)")
endif()

# Kernels on their own: the project's warnings are of the host's compiler.
add_library(msdu_nccl_loops OBJECT nccl/nccl_loops.cu)
target_include_directories(msdu_nccl_loops PRIVATE
    ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_compile_options(msdu_nccl_loops PRIVATE -fmad=false)
set_target_properties(msdu_nccl_loops PROPERTIES POSITION_INDEPENDENT_CODE ON
    CUDA_STANDARD 17 CUDA_VISIBILITY_PRESET hidden)

msdu_add_backend(nccl nccl/nccl.c nccl/nccl_device.c nccl/nccl_fault.c nccl/nccl_move.c
    nccl/nccl_register.c local_move.c rank_list.c)
target_sources(msdu_nccl PRIVATE $<TARGET_OBJECTS:msdu_nccl_loops>)
target_include_directories(msdu_nccl SYSTEM PRIVATE ${MSDU_NCCL_INCLUDE_DIR})
# the runtime is linked in: it needs no library beside the driver's, which it loads when used
target_link_libraries(msdu_nccl PRIVATE msdu_hub ${MSDU_NCCL_LIBRARY} CUDA::cudart_static)
set_target_properties(msdu_nccl PROPERTIES LINKER_LANGUAGE CUDA)
