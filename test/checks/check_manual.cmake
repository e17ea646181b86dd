# SPDX-License-Identifier: Apache-2.0
# The manual pages name every function and render without a warning.
# Needs SOURCE_DIR, WORK_DIR, PYTHON.
cmake_minimum_required(VERSION 3.21)
set(header ${SOURCE_DIR}/include/msdu/msdu.h)
set(page ${WORK_DIR}/check_manual.3)
execute_process(COMMAND ${PYTHON} ${SOURCE_DIR}/doc/header_to_man.py ${header} ${page}
    COMMAND_ERROR_IS_FATAL ANY)

file(READ ${page} text)
file(STRINGS ${header} functions REGEX "^MSDU_API [^(]*\\(")
list(LENGTH functions count)
if(count LESS 10)
    message(FATAL_ERROR "only ${count} functions found in ${header}")
endif()
foreach(function IN LISTS functions)
    string(REGEX REPLACE "^[^(]*[ *](msdu_[a-z_]+)\\(.*$" "\\1" name "${function}")
    string(FIND "${text}" ".SS ${name}()" at)
    if(at EQUAL -1)
        message(FATAL_ERROR "msdu.3 lacks ${name}")
    endif()
endforeach()

find_program(GROFF groff)
find_program(MANDOC mandoc)
foreach(file ${page} ${SOURCE_DIR}/doc/msdu.1)
    if(GROFF)
        execute_process(COMMAND ${GROFF} -mandoc -ww -z ${file}
            ERROR_VARIABLE warnings COMMAND_ERROR_IS_FATAL ANY)
        if(warnings)
            message(FATAL_ERROR "groff, ${file}:\n${warnings}")
        endif()
    endif()
    if(MANDOC)
        execute_process(COMMAND ${MANDOC} -Tlint -Wwarning ${file}
            OUTPUT_VARIABLE warnings RESULT_VARIABLE status)
        if(NOT status EQUAL 0)
            message(FATAL_ERROR "mandoc, ${file}:\n${warnings}")
        endif()
    endif()
endforeach()
