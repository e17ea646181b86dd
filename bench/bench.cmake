# SPDX-License-Identifier: Apache-2.0
# What the benches need beside their sources: the commit they measure and the peer of allreduce.

# The commit as of the latest configuration; a new commit causes one.
execute_process(
    COMMAND git -C ${PROJECT_SOURCE_DIR} describe --always --dirty
    OUTPUT_VARIABLE msdu_commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(msdu_commit)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/bench/bench.c PROPERTIES
        COMPILE_DEFINITIONS MSDU_BENCH_COMMIT="${msdu_commit}")
endif()
if(EXISTS ${PROJECT_SOURCE_DIR}/.git/logs/HEAD)
    set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY
        CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/.git/logs/HEAD)
endif()

# Speed of passes on a GPU (scripts/gpu.sh); over the tests' stand-in it only shows that it runs.
add_executable(gpu_passes bench/gpu_passes.c)
target_include_directories(gpu_passes PRIVATE src)
target_link_libraries(gpu_passes PRIVATE msdu_core msdu_flags m)
set_target_properties(gpu_passes PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)

# What `msdu run` adds to a call that it passes through (bench/passthrough.py); over the tests'
# stand-in for NCCL: test/standin/CMakeLists.txt.
get_property(msdu_mpi_families GLOBAL PROPERTY MSDU_MPI_FAMILIES)
foreach(family IN LISTS msdu_mpi_families)
    add_executable(passthrough_${family} bench/passthrough.c bench/passthrough_mpi.c)
    target_compile_definitions(passthrough_${family} PRIVATE BENCH_OVER="${family}")
    target_link_libraries(passthrough_${family} PRIVATE msdu_flags msdu_mpi_${family} ${CMAKE_DL_LIBS})
    set_target_properties(passthrough_${family} PROPERTIES
        RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endforeach()
if(MSDU_WITH_NCCL)
    find_package(CUDAToolkit REQUIRED) # once more: its targets are seen in one folder
    add_executable(passthrough_nccl bench/passthrough.c bench/passthrough_nccl.c)
    target_include_directories(passthrough_nccl SYSTEM PRIVATE
        ${MSDU_NCCL_INCLUDE_DIR} ${CUDAToolkit_INCLUDE_DIRS})
    target_link_libraries(passthrough_nccl PRIVATE msdu_flags ${MSDU_NCCL_LIBRARY} CUDA::cudart_static
        Threads::Threads rt ${CMAKE_DL_LIBS})
    set_target_properties(passthrough_nccl PROPERTIES
        RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endif()

# Not a backend: its name must not begin with libmsdu_, which the registry looks for.
if(MSDU_WITH_GLOO)
    find_package(Gloo QUIET)
    add_library(bench_gloo_whole MODULE bench/gloo_whole.cc)
    target_compile_features(bench_gloo_whole PRIVATE cxx_std_17)
    target_link_libraries(bench_gloo_whole PRIVATE gloo msdu_flags msdu_no_undefined)
    set_target_properties(bench_gloo_whole PROPERTIES
        PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
endif()

# Model profiles lie beside the command as they will after installation.
foreach(profile resnet50 vgg16 bert-large gpt2-124m gpt2-1.5b)
    configure_file(${PROJECT_SOURCE_DIR}/bench/profiles/${profile}.json
        ${PROJECT_BINARY_DIR}/share/msdu/profiles/${profile}.json COPYONLY)
    list(APPEND msdu_profiles ${PROJECT_SOURCE_DIR}/bench/profiles/${profile}.json)
endforeach()
