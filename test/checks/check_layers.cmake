# SPDX-License-Identifier: Apache-2.0
# Include layers. A pure stage includes its own folder, <msdu/...> and the C library, and nothing
# in it reads files, locks, allocates or asks for the time; wire may use the arithmetic loops of
# correct. observe and backend know msdu_impl.h and no other stage.
# Needs: SOURCE_DIR.
cmake_minimum_required(VERSION 3.21)

set(c_library assert complex ctype errno float inttypes iso646 limits math stdalign stdarg stdbool
    stddef stdint stdio string)
set(impure "[^a-z_](malloc|calloc|realloc|free|fopen|printf|fprintf|puts|getenv|abort|exit)\\(")

# check_own(folder [other]...): headers in quotes are of this folder or among the others.
function(check_own folder)
    file(GLOB files ${SOURCE_DIR}/src/${folder}/*)
    foreach(file IN LISTS files)
        file(STRINGS ${file} lines REGEX "^ *# *include *\"")
        foreach(line IN LISTS lines)
            string(REGEX REPLACE "^[^\"]*\"([^\"]*)\".*$" "\\1" name "${line}")
            if(name MATCHES "/" AND NOT name IN_LIST ARGN)
                message(SEND_ERROR "${file}: this layer may not have ${line}")
            endif()
        endforeach()
    endforeach()
endfunction()

# check_pure(folder [beginning]...): all files, or those whose names begin so.
function(check_pure folder)
    list(TRANSFORM ARGN PREPEND ${SOURCE_DIR}/src/${folder}/)
    list(TRANSFORM ARGN APPEND *)
    if(NOT ARGN)
        set(ARGN ${SOURCE_DIR}/src/${folder}/*)
    endif()
    file(GLOB files ${ARGN})
    if(NOT files)
        message(SEND_ERROR "no files of ${folder}: ${ARGN}")
    endif()
    foreach(file IN LISTS files)
        file(STRINGS ${file} lines REGEX "^ *# *include *<")
        foreach(line IN LISTS lines)
            string(REGEX REPLACE "^[^<]*<([^>]*)\\.h>.*$" "\\1" name "${line}")
            if(NOT name IN_LIST c_library AND NOT name MATCHES "^msdu/")
                message(SEND_ERROR "${file}: a pure stage may not have ${line}")
            endif()
        endforeach()
        file(STRINGS ${file} lines REGEX "${impure}")
        if(lines)
            message(SEND_ERROR "${file} is not pure: ${lines}")
        endif()
    endforeach()
endfunction()

check_own(slicer)
check_own(interval)
check_own(correct)
check_own(wire ../correct/vec.h)
check_own(observe ../msdu_impl.h)
check_own(backend ../msdu_impl.h)
# What recognizes gradients is pure too; the rest of attach speaks to MPI and to the loader.
foreach(stage slicer interval correct wire)
    check_pure(${stage})
endforeach()
# What `msdu plan` simulates with; its reader of profiles and settings allocates.
check_pure(whatif network simulate)
