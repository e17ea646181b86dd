# SPDX-License-Identifier: Apache-2.0
# msdu_registered(out header): sources of what the list X(name) in a header registers, <name>.c
# beside it, so that registering takes one line in one place.
function(msdu_registered out header)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
    file(READ ${header} text)
    get_filename_component(folder ${header} DIRECTORY)
    string(REGEX MATCHALL " X\\([a-z0-9_]+\\)" names "${text}")
    list(TRANSFORM names REPLACE " X\\(([a-z0-9_]+)\\)" "${folder}/\\1.c")
    set(${out} ${names} PARENT_SCOPE)
endfunction()
