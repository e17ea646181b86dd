# SPDX-License-Identifier: Apache-2.0
# Installation: library, headers, modules, command, and what find_package and pkg-config read.

install(TARGETS msdu EXPORT msdu-targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY include/msdu DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
get_property(msdu_backends GLOBAL PROPERTY MSDU_BACKENDS)
if(msdu_backends)
    install(TARGETS ${msdu_backends} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/msdu)
endif()
get_property(msdu_attaches GLOBAL PROPERTY MSDU_ATTACHES)
install(TARGETS msdu_preload LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(msdu_attaches)
    install(TARGETS ${msdu_attaches} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/msdu)
endif()
if(TARGET msdu_command)
    install(TARGETS msdu_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(msdu_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/msdu)
install(EXPORT msdu-targets NAMESPACE msdu:: FILE msdu-config.cmake
    DESTINATION ${msdu_cmake_dir})
# While the major version is 0, a minor release may break its callers.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/msdu-config-version.cmake
    COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/msdu-config-version.cmake DESTINATION ${msdu_cmake_dir})

# The prefix is found from the place of msdu.pc, so an installed tree may be moved.
file(RELATIVE_PATH msdu_pc_prefix
    "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")
string(REGEX REPLACE "/$" "" msdu_pc_prefix "${msdu_pc_prefix}")
configure_file(src/api/msdu.pc.in msdu.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/msdu.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
