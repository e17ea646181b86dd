# SPDX-License-Identifier: Apache-2.0
# The module nccl as its sources are, but over a stand-in: no GPU, no CUDA, no NCCL. What is tested
# is the module's logic and the library's order of operations and passes; never NCCL itself, nor the
# kernels as nvcc compiles them.
set(standin ${CMAKE_CURRENT_SOURCE_DIR}/standin)
set(backend ${PROJECT_SOURCE_DIR}/src/backend)

add_library(msdu_standin SHARED ${standin}/cuda.c ${standin}/nccl.c)
target_include_directories(msdu_standin PUBLIC ${standin})
target_link_libraries(msdu_standin PRIVATE msdu_flags Threads::Threads rt)

add_library(msdu_nccl_standin MODULE ${backend}/nccl.c ${backend}/nccl_device.c
    ${backend}/nccl_fault.c ${backend}/nccl_move.c ${backend}/local_move.c ${backend}/rank_list.c ${standin}/loops.c)
target_compile_definitions(msdu_nccl_standin PRIVATE MSDU__NCCL_NAME="nccl_standin")
target_include_directories(msdu_nccl_standin PRIVATE ${PROJECT_SOURCE_DIR}/include ${backend})
target_link_libraries(msdu_nccl_standin PRIVATE msdu_flags msdu_no_undefined msdu_standin msdu_hub Threads::Threads m)
target_link_options(msdu_nccl_standin PRIVATE LINKER:--version-script=${backend}/module.map)
set_target_properties(msdu_standin msdu_nccl_standin PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/test/standin)

msdu_register_test(backend_nccl_standin test_backend)
add_dependencies(test_backend msdu_nccl_standin)
set_property(TEST backend_nccl_standin APPEND PROPERTY ENVIRONMENT
    MSDU_TEST_BACKEND=nccl_standin MSDU_MODULE_PATH=${PROJECT_BINARY_DIR}/test/standin)

# Tests of the trainer, once more with tensors in device memory: the reference stays what it was.
foreach(name accumulated buffer local skip wire)
    msdu_test_program(device_${name} test_train_${name}.c ${standin}/ranks_place.c)
    target_include_directories(test_device_${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
    target_link_libraries(test_device_${name} PRIVATE msdu_standin)
    add_dependencies(test_device_${name} msdu_nccl_standin)
    msdu_register_test(device_${name} test_device_${name})
    set_property(TEST device_${name} APPEND PROPERTY ENVIRONMENT
        MSDU_MODULE_PATH=${PROJECT_BINARY_DIR}/test/standin)
endforeach()

msdu_test_program(device_streams ${standin}/test_streams.c ${standin}/ranks_place.c)
target_include_directories(test_device_streams PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(test_device_streams PRIVATE msdu_standin)
add_dependencies(test_device_streams msdu_nccl_standin)
msdu_register_test(device_streams test_device_streams)
set_property(TEST device_streams APPEND PROPERTY ENVIRONMENT
    MSDU_MODULE_PATH=${PROJECT_BINARY_DIR}/test/standin)

if(TARGET gpu_passes)
    msdu_register_test(gpu_passes gpu_passes nccl_standin 1)
    set_property(TEST gpu_passes APPEND PROPERTY ENVIRONMENT
        MSDU_MODULE_PATH=${PROJECT_BINARY_DIR}/test/standin)
endif()
