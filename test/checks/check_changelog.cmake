# SPDX-License-Identifier: Apache-2.0
# The top entry of CHANGELOG.md is the version of the header.
# Needs: CHANGELOG, VERSION.
cmake_minimum_required(VERSION 3.21)

file(STRINGS ${CHANGELOG} entries REGEX "^## ")
list(GET entries 0 top)
if(NOT top MATCHES "^## ${VERSION}( |$)")
    message(FATAL_ERROR "header says ${VERSION}, CHANGELOG.md begins with: ${top}")
endif()
