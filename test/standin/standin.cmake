# SPDX-License-Identifier: Apache-2.0
# The module nccl as its sources are, but over a stand-in: no GPU, no CUDA, no NCCL. What is tested
# is the module's logic and the library's order of operations and passes; never NCCL itself, nor the
# kernels as nvcc compiles them.
set(standin ${CMAKE_CURRENT_SOURCE_DIR}/standin)
set(backend ${PROJECT_SOURCE_DIR}/src/backend)

add_library(msdu_standin_cuda SHARED ${standin}/cuda.c)
target_include_directories(msdu_standin_cuda PUBLIC ${standin})
target_link_libraries(msdu_standin_cuda PRIVATE msdu_flags Threads::Threads)
foreach(name msdu_standin msdu_standin_copy msdu_standin_old) # a process may hold two NCCLs, but one driver
    add_library(${name} SHARED ${standin}/nccl.c ${standin}/nccl_comm.c ${standin}/nccl_register.c half.c)
    target_link_libraries(${name} PRIVATE msdu_flags Threads::Threads rt m PUBLIC msdu_standin_cuda)
endforeach()

# The same library as it was before it had anything to register, by the same name.
target_compile_definitions(msdu_standin_old PRIVATE STANDIN_OLD)
set_target_properties(msdu_standin_old PROPERTIES OUTPUT_NAME msdu_standin
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/test/standin/old)

add_library(msdu_nccl_standin MODULE ${backend}/nccl.c ${backend}/nccl_device.c
    ${backend}/nccl_fault.c ${backend}/nccl_move.c ${backend}/nccl_register.c ${backend}/local_move.c ${backend}/rank_list.c ${standin}/loops.c)
target_compile_definitions(msdu_nccl_standin PRIVATE MSDU__NCCL_NAME="nccl_standin")
target_include_directories(msdu_nccl_standin PRIVATE ${PROJECT_SOURCE_DIR}/include ${backend})
target_link_libraries(msdu_nccl_standin PRIVATE msdu_flags msdu_no_undefined msdu_standin msdu_hub Threads::Threads m)
target_link_options(msdu_nccl_standin PRIVATE LINKER:--version-script=${backend}/module.map)
set_target_properties(msdu_standin_cuda msdu_standin msdu_standin_copy msdu_nccl_standin PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/test/standin)

msdu_register_test(backend_nccl_standin test_backend)
add_dependencies(test_backend msdu_nccl_standin)
set_property(TEST backend_nccl_standin APPEND PROPERTY ENVIRONMENT
    MSDU_TEST_BACKEND=nccl_standin MSDU_MODULE_PATH=${PROJECT_BINARY_DIR}/test/standin)

# Tests whose tensors are in device memory.
function(msdu_device_test name)
    msdu_test_program(device_${name} ${ARGN} ${standin}/ranks_place.c)
    target_include_directories(test_device_${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
    target_link_libraries(test_device_${name} PRIVATE msdu_standin)
    add_dependencies(test_device_${name} msdu_nccl_standin)
    msdu_register_test(device_${name} test_device_${name})
    set_property(TEST device_${name} APPEND PROPERTY ENVIRONMENT
        MSDU_MODULE_PATH=${PROJECT_BINARY_DIR}/test/standin)
endfunction()

# Those of the trainer, once more: the reference stays what it was.
foreach(name accumulated buffer fixed half input join local pass skip sync weight wire)
    msdu_device_test(${name} test_train_${name}.c)
endforeach()
msdu_device_test(state test_state.c state_kit.c)
msdu_device_test(streams ${standin}/test_streams.c)

msdu_device_test(register ${standin}/test_register.c)
target_link_libraries(test_device_register PRIVATE ${CMAKE_DL_LIBS})
add_dependencies(test_device_register msdu_standin_old)
msdu_register_test(device_register_old test_device_register)
set_property(TEST device_register_old APPEND PROPERTY ENVIRONMENT STANDIN_IS_OLD=1
    MSDU_MODULE_PATH=${PROJECT_BINARY_DIR}/test/standin
    LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/test/standin/old)

msdu_test_program(device_loops ${standin}/test_loops.c ${standin}/loops.c)
target_include_directories(test_device_loops PRIVATE ${CMAKE_CURRENT_SOURCE_DIR} ${backend})
target_link_libraries(test_device_loops PRIVATE msdu_standin_cuda)
msdu_register_test(device_loops test_device_loops)

if(TARGET gpu_passes)
    msdu_register_test(gpu_passes gpu_passes nccl_standin 1)
    set_property(TEST gpu_passes APPEND PROPERTY ENVIRONMENT
        MSDU_MODULE_PATH=${PROJECT_BINARY_DIR}/test/standin)
endif()

# What is preloaded, over the same stand-in: a trainer that links it and nothing of this project.
get_property(msdu_attach_nccl_sources GLOBAL PROPERTY MSDU_ATTACH_NCCL_SOURCES)
add_library(msdu_attach_nccl_standin MODULE ${msdu_attach_nccl_sources})
set_target_properties(msdu_attach_nccl_standin PROPERTIES PREFIX "" OUTPUT_NAME msdu_attach_nccl
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/test/standin)
target_compile_definitions(msdu_attach_nccl_standin PRIVATE MSDU__NCCL_NAME="nccl_standin")
target_link_libraries(msdu_attach_nccl_standin PRIVATE
    msdu_flags msdu_no_undefined msdu::msdu msdu_standin Threads::Threads ${CMAKE_DL_LIBS})
add_executable(attach_nccl_trainer attach_nccl_trainer.c half.c)
target_link_libraries(attach_nccl_trainer PRIVATE
    msdu_flags msdu_standin Threads::Threads m ${CMAKE_DL_LIBS})
foreach(copy "" _copy)
    add_library(attach_nccl_late${copy} MODULE attach_nccl_trainer.c half.c)
    target_compile_definitions(attach_nccl_late${copy} PRIVATE main=late_main)
    target_link_libraries(attach_nccl_late${copy} PRIVATE
        msdu_flags msdu_standin${copy} Threads::Threads m ${CMAKE_DL_LIBS})
endforeach()
add_executable(passthrough_nccl_standin ${PROJECT_SOURCE_DIR}/bench/passthrough.c ${PROJECT_SOURCE_DIR}/bench/passthrough_nccl.c)
target_compile_definitions(passthrough_nccl_standin PRIVATE
    BENCH_OVER="stand-in" BENCH_NCCL="libmsdu_standin.so")
target_link_libraries(passthrough_nccl_standin PRIVATE
    msdu_flags msdu_standin Threads::Threads ${CMAKE_DL_LIBS})
set_target_properties(passthrough_nccl_standin PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
add_executable(attach_nccl_loader attach_nccl_loader.c)
target_link_libraries(attach_nccl_loader PRIVATE msdu_flags ${CMAKE_DL_LIBS})
set_target_properties(attach_nccl_trainer attach_nccl_late attach_nccl_late_copy attach_nccl_loader
    PROPERTIES PREFIX ""
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/test
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/test)
find_package(Python3 QUIET COMPONENTS Interpreter)
if(Python3_FOUND AND TARGET msdu_command AND NOT MSDU_SANITIZE MATCHES "thread|fuzzer") # those must be first in a process
    foreach(case Exact Narrow Halves Infinite Ways Local Changes Joins Hostile Hosts Loading)
        string(TOLOWER attach_nccl_${case} name)
        msdu_register_test(${name} ${Python3_EXECUTABLE} -B
            ${CMAKE_CURRENT_SOURCE_DIR}/test_attach_nccl.py --msdu $<TARGET_FILE:msdu_command>
            --programs ${PROJECT_BINARY_DIR}/test ${case})
        set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT
            ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0:${msdu_asan_options})
    endforeach()
endif()
