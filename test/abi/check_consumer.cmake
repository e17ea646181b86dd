# SPDX-License-Identifier: Apache-2.0
# Installs into a prefix, moves the prefix, and builds and runs a foreign project against both
# places, through find_package and through pkg-config.
# Needs: BUILD_DIR, CONSUMER_DIR, WORK_DIR, LIBDIR, C_COMPILER, PKG_CONFIG.
cmake_minimum_required(VERSION 3.21)

function(run)
    execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output
        ERROR_VARIABLE output)
    if(result)
        message(FATAL_ERROR "failed (${result}): ${ARGN}\n${output}")
    endif()
endfunction()

function(check_package prefix)
    run(${CMAKE_COMMAND} -S ${CONSUMER_DIR} -B ${prefix}-cmake -DCMAKE_PREFIX_PATH=${prefix}
        -DCMAKE_C_COMPILER=${C_COMPILER})
    run(${CMAKE_COMMAND} --build ${prefix}-cmake)
    run(${prefix}-cmake/consumer)
endfunction()

function(check_pkg_config prefix)
    set(ENV{PKG_CONFIG_PATH} ${prefix}/${LIBDIR}/pkgconfig)
    execute_process(COMMAND ${PKG_CONFIG} --cflags --libs msdu OUTPUT_VARIABLE flags
        COMMAND_ERROR_IS_FATAL ANY)
    separate_arguments(flags UNIX_COMMAND "${flags}")
    run(${C_COMPILER} -std=c11 ${CONSUMER_DIR}/consumer.c ${flags}
        -Wl,-rpath,${prefix}/${LIBDIR} -o ${prefix}-pkg-config)
    run(${prefix}-pkg-config)
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
file(MAKE_DIRECTORY ${WORK_DIR})
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/first)
check_package(${WORK_DIR}/first)
check_pkg_config(${WORK_DIR}/first)
file(RENAME ${WORK_DIR}/first ${WORK_DIR}/second)
check_package(${WORK_DIR}/second)
check_pkg_config(${WORK_DIR}/second)

# The moved command finds the moved modules.
unset(ENV{MSDU_MODULE_PATH})
if(EXISTS ${WORK_DIR}/second/bin/msdu)
    execute_process(COMMAND ${WORK_DIR}/second/bin/msdu info OUTPUT_VARIABLE info
        COMMAND_ERROR_IS_FATAL ANY)
    file(GLOB modules ${WORK_DIR}/second/${LIBDIR}/msdu/libmsdu_*.so)
    foreach(module IN LISTS modules)
        string(REGEX REPLACE "^.*/libmsdu_(.*)\\.so$" "\\1" name "${module}")
        if(NOT info MATCHES "\n +${name} +found")
            message(FATAL_ERROR "msdu info does not find ${name}:\n${info}")
        endif()
    endforeach()
endif()
