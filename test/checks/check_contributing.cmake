# SPDX-License-Identifier: Apache-2.0
# The examples of CONTRIBUTING.md compile: each C block begins with the path of the file it shows.
# Needs: SOURCE_DIR, WORK_DIR, C_COMPILER.
cmake_minimum_required(VERSION 3.21)

file(READ ${SOURCE_DIR}/CONTRIBUTING.md text)
string(REPLACE ";" "<semicolon>" text "${text}") # a list would be cut there
string(REPLACE "[" "<bracket>" text "${text}")
string(REPLACE "```c\n" ";" blocks "${text}")
list(POP_FRONT blocks)
list(LENGTH blocks count)
if(count LESS 3)
    message(FATAL_ERROR "only ${count} examples found")
endif()
foreach(block IN LISTS blocks)
    string(REGEX REPLACE "\n```.*$" "\n" block "${block}")
    string(REGEX REPLACE "^/\\* (src/[a-z_/]+)/([a-z_]+\\.c) \\*/\n" "" code "${block}")
    if(code STREQUAL block)
        message(FATAL_ERROR "an example does not begin with its path:\n${block}")
    endif()
    set(folder ${CMAKE_MATCH_1})
    set(name ${CMAKE_MATCH_2})
    string(REPLACE "<semicolon>" ";" code "${code}")
    string(REPLACE "<bracket>" "[" code "${code}")
    file(WRITE ${WORK_DIR}/${name} "${code}")
    execute_process(COMMAND ${C_COMPILER} -std=c11 -Wall -Wextra -Wconversion -Werror -fsyntax-only
        -I${SOURCE_DIR}/include -I${SOURCE_DIR}/src -I${SOURCE_DIR}/${folder} ${WORK_DIR}/${name}
        COMMAND_ERROR_IS_FATAL ANY)
endforeach()
