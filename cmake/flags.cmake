# SPDX-License-Identifier: Apache-2.0
# What every target of this project is compiled with, and nothing that a consumer would inherit.

add_library(msdu_flags INTERFACE)
target_compile_features(msdu_flags INTERFACE c_std_11)
target_compile_definitions(msdu_flags INTERFACE _GNU_SOURCE)
# Contraction into fused multiply-add would break the equality of bits between instruction sets.
target_compile_options(msdu_flags INTERFACE
    -fvisibility=hidden -ffp-contract=off
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wcast-qual -Wcast-align
    -Wundef -Wvla -Wformat=2 -Wwrite-strings -Wpointer-arith -Wswitch-enum -Wdouble-promotion
    -Wnull-dereference
    $<$<COMPILE_LANGUAGE:C>:-std=c11 -Wstrict-prototypes -Wmissing-prototypes
    -Wold-style-definition>
    $<$<COMPILE_LANGUAGE:CXX>:-fvisibility-inlines-hidden>)
if(MSDU_WERROR)
    target_compile_options(msdu_flags INTERFACE -Werror)
endif()

# Shared objects that must be complete. The sanitizers' run-time functions live in the program.
add_library(msdu_no_undefined INTERFACE)
if(MSDU_SANITIZE)
    target_compile_options(msdu_flags INTERFACE
        -fsanitize=${MSDU_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(msdu_flags INTERFACE -fsanitize=${MSDU_SANITIZE})
else()
    target_link_options(msdu_no_undefined INTERFACE LINKER:-z,defs)
endif()
