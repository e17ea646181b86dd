# SPDX-License-Identifier: Apache-2.0
# What the folders of test/ register their tests with; a property of a test can be set only in the
# folder that registers it.

# What every test sees: modules from the build folder and nothing of the caller's settings.
# Check's own limit of 4 s a test is short on a machine that does other things as well.
set(msdu_test_environment "MSDU_MODULE_PATH=${PROJECT_BINARY_DIR}/lib;CK_DEFAULT_TIMEOUT=60")
set(msdu_test_seconds 240)
if(MSDU_SANITIZE)
    set(msdu_test_seconds 400)
    # Leaks reported inside Check's forked children would be Check's own.
    list(APPEND msdu_test_environment CK_FORK=no)
    # Threads that use the stack of a function that has returned.
    set(msdu_asan_options detect_stack_use_after_return=1)
    list(APPEND msdu_test_environment ASAN_OPTIONS=${msdu_asan_options})
endif()

# msdu_test_program(name source...): build/test/test_<name> with access to internals.
function(msdu_test_program name)
    add_executable(test_${name} ${ARGN})
    target_include_directories(test_${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
    target_link_libraries(test_${name} PRIVATE msdu_test_kit msdu_core msdu_flags m)
    set_target_properties(test_${name} PROPERTIES
        RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/test)
    if(MSDU_SANITIZE AND MSDU_WITH_GLOO)
        # The C++ module needs the sanitizer's C++ run time, which only this program can bring.
        set_target_properties(test_${name} PROPERTIES LINKER_LANGUAGE CXX)
    endif()
endfunction()

# msdu_register_test(test command...): run in CTest; exit 77 is "skipped".
function(msdu_register_test test)
    add_test(NAME ${test} COMMAND ${ARGN})
    set_tests_properties(${test} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT ${msdu_test_seconds}
        ENVIRONMENT "${msdu_test_environment}")
endfunction()

# msdu_register_script(test command...): the same, and it must leave nothing in the temporary folder.
function(msdu_register_script test)
    msdu_register_test(${test}
        ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/test/kit/left_behind.py ${ARGN})
endfunction()

# msdu_add_test(name [extra sources]): test_<name>.c as program and test.
function(msdu_add_test name)
    msdu_test_program(${name} test_${name}.c ${ARGN})
    msdu_register_test(${name} test_${name})
endfunction()

# msdu_add_check(name definitions...): check_<name>.cmake as a test.
function(msdu_add_check name)
    list(TRANSFORM ARGN PREPEND -D)
    msdu_register_test(check_${name}
        ${CMAKE_COMMAND} ${ARGN} -P ${CMAKE_CURRENT_SOURCE_DIR}/check_${name}.cmake)
endfunction()
