# SPDX-License-Identifier: Apache-2.0
# Tells the benches which commit they measure, as of the latest configuration; a new commit causes
# one.
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
