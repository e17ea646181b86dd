# SPDX-License-Identifier: Apache-2.0
# Every header compiles alone: public ones as C11, C17 and C++17, internal ones as C11, those of a
# C++ module as C++17.
# Needs: SOURCE_DIR, C_COMPILER; CXX_COMPILER may be empty.
cmake_minimum_required(VERSION 3.21)

set(strict -Wall -Wextra -Wpedantic -Wconversion -Werror -fsyntax-only -I${SOURCE_DIR}/include)

function(compile header)
    # included into nothing: as the main file its inline functions would count as unused
    execute_process(COMMAND ${ARGN} ${strict} -include ${header} /dev/null RESULT_VARIABLE result
        ERROR_VARIABLE output)
    if(result)
        message(SEND_ERROR "${header} does not compile alone with ${ARGN}\n${output}")
    endif()
endfunction()

file(GLOB public ${SOURCE_DIR}/include/msdu/*.h)
foreach(header IN LISTS public)
    foreach(standard c11 c17)
        compile(${header} ${C_COMPILER} -xc -std=${standard})
    endforeach()
    if(CXX_COMPILER)
        compile(${header} ${CXX_COMPILER} -xc++ -std=c++17)
    endif()
endforeach()

file(GLOB_RECURSE internal ${SOURCE_DIR}/src/*.h)
foreach(header IN LISTS internal)
    file(STRINGS ${header} is_cxx REGEX "^namespace ")
    file(STRINGS ${header} is_mpi REGEX "^#include <mpi.h>") # of a family's module
    if(is_mpi)
        continue()
    elseif(NOT is_cxx)
        # the stand-in's headers take the place of CUDA's and NCCL's
        compile(${header} ${C_COMPILER} -xc -std=c11 -D_GNU_SOURCE -I${SOURCE_DIR}/src
            -I${SOURCE_DIR}/test/standin)
    elseif(CXX_COMPILER)
        compile(${header} ${CXX_COMPILER} -xc++ -std=c++17 -D_GNU_SOURCE -I${SOURCE_DIR}/src)
    endif()
endforeach()
