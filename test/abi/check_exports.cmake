# SPDX-License-Identifier: Apache-2.0
# Exported symbols equal src/api/msdu.map, and every function of the public headers is among them; the
# library needs libc and libm only; a module exports its table only.
# Needs: NM, READELF, LIBRARY, MAP, HEADERS, MODULES.
cmake_minimum_required(VERSION 3.21)

function(defined_symbols file out)
    execute_process(COMMAND ${NM} -D --defined-only ${file} OUTPUT_VARIABLE lines
        COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX MATCHALL " [TDRBVW] [^\n@]+" lines "${lines}")
    list(TRANSFORM lines REPLACE "^ . " "")
    list(SORT lines)
    set(${out} "${lines}" PARENT_SCOPE)
endfunction()

file(STRINGS ${MAP} map_symbols REGEX "^ +msdu_[a-z_]+;$")
list(TRANSFORM map_symbols REPLACE "[ ;]" "")
list(SORT map_symbols)

defined_symbols(${LIBRARY} symbols)
if(NOT symbols STREQUAL map_symbols)
    message(FATAL_ERROR "exports differ from the map\nlibrary: ${symbols}\nmap: ${map_symbols}")
endif()

set(declared)
foreach(file IN LISTS HEADERS)
    file(READ ${file} header)
    string(REGEX MATCHALL "\nMSDU_API [^;(]*[ *]msdu_[a-z_]+\\(" found "${header}")
    list(APPEND declared ${found})
endforeach()
list(TRANSFORM declared REPLACE "^.*[ *](msdu_[a-z_]+)\\($" "\\1")
list(SORT declared)
if(NOT declared STREQUAL map_symbols)
    message(FATAL_ERROR "headers differ from the map\nheaders: ${declared}\nmap: ${map_symbols}")
endif()

execute_process(COMMAND ${READELF} -d ${LIBRARY} OUTPUT_VARIABLE dynamic
    COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "\\(NEEDED\\)[^\n]*" needed "${dynamic}")
foreach(line IN LISTS needed)
    if(NOT line MATCHES "\\[lib[cm]\\.so\\.6\\]")
        message(FATAL_ERROR "needed beside libc and libm: ${line}")
    endif()
endforeach()

foreach(module IN LISTS MODULES)
    defined_symbols(${module} symbols)
    if(NOT symbols STREQUAL "msdu_backend_v2")
        message(FATAL_ERROR "${module} exports more than its table: ${symbols}")
    endif()
endforeach()
