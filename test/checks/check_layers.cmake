# SPDX-License-Identifier: Apache-2.0
# Layers of src/: a line for each folder with the folders that it may include, beside its own and
# <msdu/...>. A pure folder reads no files, takes no locks, allocates nothing and does not ask for
# the time. Calls are looked at by check_calls.py.
# Needs: SOURCE_DIR.
cmake_minimum_required(VERSION 3.21)

set(c_library assert complex ctype errno float inttypes iso646 limits math stdalign stdarg stdbool
    stddef stdint stdio string)
set(impure "[^a-z_](malloc|calloc|realloc|free|fopen|printf|fprintf|puts|getenv|abort|exit)\\(")

# quoted(file out): the folders of headers in quotes; "." for the file's own.
function(quoted file out)
    set(folders)
    file(STRINGS ${file} lines REGEX "^ *# *include *\"")
    foreach(line IN LISTS lines)
        string(REGEX REPLACE "^[^\"]*\"([^\"]*)\".*$" "\\1" name "${line}")
        get_filename_component(folder "${name}" DIRECTORY)
        if(folder STREQUAL "")
            set(folder .)
        endif()
        list(APPEND folders ${folder})
    endforeach()
    set(${out} ${folders} PARENT_SCOPE)
endfunction()

# layer(folder [other]...)
function(layer folder)
    file(GLOB files ${SOURCE_DIR}/src/${folder}/*.*)
    if(NOT files)
        message(SEND_ERROR "src/${folder}: no such folder, or nothing in it")
    endif()
    foreach(file IN LISTS files)
        quoted(${file} folders)
        foreach(other IN LISTS folders)
            if(NOT other STREQUAL "." AND NOT other IN_LIST ARGN)
                message(SEND_ERROR "${file}: src/${folder} may not include src/${other}")
            endif()
        endforeach()
    endforeach()
    set_property(GLOBAL APPEND PROPERTY layers ${folder})
endfunction()

# pure(folder [beginning]...): all files, or those whose names begin so.
function(pure folder)
    list(TRANSFORM ARGN PREPEND ${SOURCE_DIR}/src/${folder}/)
    list(TRANSFORM ARGN APPEND *)
    if(NOT ARGN)
        set(ARGN ${SOURCE_DIR}/src/${folder}/*)
    endif()
    list(TRANSFORM ARGN APPEND .*)
    file(GLOB files ${ARGN})
    if(NOT files)
        message(SEND_ERROR "no files of ${folder}: ${ARGN}")
    endif()
    foreach(file IN LISTS files)
        file(STRINGS ${file} lines REGEX "^ *# *include *<")
        foreach(line IN LISTS lines)
            string(REGEX REPLACE "^[^<]*<([^>]*)\\.h>.*$" "\\1" name "${line}")
            if(NOT name IN_LIST c_library AND NOT name MATCHES "^msdu/"
                AND NOT (folder STREQUAL "simd" AND name STREQUAL "immintrin"))
                message(SEND_ERROR "${file}: a pure folder may not have ${line}")
            endif()
        endforeach()
        file(STRINGS ${file} lines REGEX "${impure}|^ *# *include *\"base/base")
        if(lines)
            message(SEND_ERROR "${file} is not pure: ${lines}")
        endif()
    endforeach()
endfunction()

# Pure stages of a round; not the stages of a pipeline, which are in src/stages.
set(round_stages slicer interval correct wire)

layer(base)
layer(simd base)
layer(slicer base)
layer(interval)
layer(correct base simd)
layer(wire base simd)
layer(config base interval correct wire)
layer(observe base)
layer(core base simd ${round_stages} config observe)
layer(startup base core)
layer(caller startup core interval)
layer(checkpoint caller startup core base config)
layer(stages)
layer(api base caller startup checkpoint stages core backend)
layer(backend base)
layer(backend/local backend base)
layer(backend/host backend base)
layer(backend/rendezvous base backend)
layer(members base backend backend/rendezvous)
layer(backend/gloo backend backend/rendezvous members)
layer(backend/mpi base backend)
layer(backend/nccl base backend backend/rendezvous)
layer(attach base config)
layer(attach/mpi base attach)
layer(attach/nccl base attach)
layer(attach/preload base attach backend)
layer(predict base ${round_stages} config core)
layer(cli simd ${round_stages} backend attach predict)

# No file beside the folders, and no folder without its line.
file(GLOB_RECURSE files RELATIVE ${SOURCE_DIR}/src ${SOURCE_DIR}/src/*.c ${SOURCE_DIR}/src/*.h
    ${SOURCE_DIR}/src/*.cc ${SOURCE_DIR}/src/*.cu ${SOURCE_DIR}/src/*.inc)
get_property(layers GLOBAL PROPERTY layers)
foreach(file IN LISTS files)
    get_filename_component(folder ${file} DIRECTORY)
    if(NOT folder IN_LIST layers)
        message(SEND_ERROR "src/${file}: its folder has no line here")
    endif()
endforeach()

# Atomics: in the cells and the ready queue; Gloo's backend is C++ and has std::atomic. Cells of the
# core: in the hand-over and the thread's loop.
file(GLOB_RECURSE files RELATIVE ${SOURCE_DIR}/src ${SOURCE_DIR}/src/*.c ${SOURCE_DIR}/src/*.h
    ${SOURCE_DIR}/src/*.cc ${SOURCE_DIR}/src/*.cu ${SOURCE_DIR}/src/*.inc)
foreach(file IN LISTS files)
    file(STRINGS ${SOURCE_DIR}/src/${file} lines REGEX "stdatomic|_Atomic|atomic_|std::atomic|__sync_|__atomic")
    if(lines AND NOT file MATCHES "^(base/cell\\.h|core/ready\\.[ch]|backend/gloo/.*)$")
        message(SEND_ERROR "src/${file} has atomics of its own: ${lines}")
    endif()
    file(STRINGS ${SOURCE_DIR}/src/${file} lines
        REGEX "^ *(static )?msdu__(cell|number|flag) \\*?[a-z_]+(\\[.*\\])?;")
    if(lines AND file MATCHES "^(core|startup|caller|checkpoint)/"
        AND NOT file MATCHES "^core/(handover|worker)\\.h$")
        message(SEND_ERROR "src/${file}: what threads share belongs into the hand-over: ${lines}")
    endif()
endforeach()

foreach(folder IN ITEMS simd ${round_stages})
    pure(${folder})
endforeach()
# How members decide.
pure(members council gather record)
# What `msdu plan` simulates with; its reader of profiles and settings allocates.
pure(predict network simulate)
# Pipelines: pure but for memory, which one file allocates.
pure(stages build compare given lower model network order programs replay search split vee)
