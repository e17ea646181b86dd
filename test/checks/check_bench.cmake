# SPDX-License-Identifier: Apache-2.0
# The benches run, find their results right, and write the records their readers expect. No times
# are judged here, only that they were taken.
# Needs COMMAND, WORK_DIR, BENCHES.
cmake_minimum_required(VERSION 3.21)

set(fields_kernels name gbps memcpy_gbps ratio)
set(fields_hooks name tensor_ready_ns allocations_after_start)
set(fields_allreduce bytes sliced_us whole_us ratio)
set(fields_overlap profile comm_comp_ratio method step_us bound_us exposed_share link_use wrong)

function(check_record bench record)
    foreach(field IN LISTS fields_${bench})
        string(JSON type ERROR_VARIABLE error TYPE "${record}" ${field})
        if(error)
            message(FATAL_ERROR "bench ${bench}: a record has no ${field}: ${record}")
        endif()
    endforeach()
    foreach(field allocations_after_start sliced_allocations)
        string(JSON count ERROR_VARIABLE error GET "${record}" ${field})
        if(NOT error AND count GREATER 0)
            message(FATAL_ERROR "bench ${bench}: memory is allocated after start: ${record}")
        endif()
    endforeach()
endfunction()

foreach(bench IN LISTS BENCHES)
    set(file ${WORK_DIR}/bench_${bench}.json)
    execute_process(COMMAND ${COMMAND} bench ${bench} --smoke --json ${file}
        RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_VARIABLE text)
    if(NOT result EQUAL 0)
        message(FATAL_ERROR "msdu bench ${bench}: ${result}\n${text}")
    endif()
    file(READ ${file} records)
    string(JSON count LENGTH "${records}")
    if(count EQUAL 0)
        message(FATAL_ERROR "bench ${bench}: no records")
    endif()
    math(EXPR last "${count} - 1")
    foreach(i RANGE ${last})
        string(JSON record GET "${records}" ${i})
        check_record(${bench} "${record}")
    endforeach()
endforeach()

if("allreduce" IN_LIST BENCHES)
    execute_process(COMMAND ${COMMAND} bench allreduce --smoke --wire int2
        RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_VARIABLE text)
    if(NOT result EQUAL 0)
        message(FATAL_ERROR "msdu bench allreduce --wire int2: ${result}\n${text}")
    endif()
    execute_process(COMMAND ${COMMAND} bench allreduce --wire int3
        RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_VARIABLE text)
    if(result EQUAL 0 OR NOT text MATCHES "'int3' is no wire format")
        message(FATAL_ERROR "msdu bench allreduce --wire int3: ${result}\n${text}")
    endif()
endif()
