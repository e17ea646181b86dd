# SPDX-License-Identifier: Apache-2.0
# How tests start jobs of mpirun: msdu_mpi_families are those whose mpirun works here,
# msdu_mpi_tested those that the conformance suite runs with; where a family is missing, its test is
# skipped. Root may start jobs, and there may be fewer cores than ranks.
set(msdu_mpi_environment OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_plm_rsh_agent= OMPI_MCA_mpi_yield_when_idle=1
    PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe) # of Open MPI 5
set(msdu_mpi_tested openmpi mpich)
if(MSDU_SANITIZE)
    get_property(msdu_mpi_tested GLOBAL PROPERTY MSDU_MPI_FAMILIES)
    list(APPEND msdu_mpi_environment ASAN_OPTIONS=detect_leaks=0:${msdu_asan_options})
else() # a rank of MPICH that waits gives its core away, as Open MPI's do
    add_library(msdu_mpi_yield MODULE kit/mpi_yield.c)
    target_link_libraries(msdu_mpi_yield PRIVATE msdu_flags ${CMAKE_DL_LIBS})
    set_target_properties(msdu_mpi_yield PROPERTIES
        LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/test)
    list(APPEND msdu_mpi_environment LD_PRELOAD=$<TARGET_FILE:msdu_mpi_yield>)
endif()

# msdu_check_mpirun(family): does its mpirun make one job of two processes? (Ubuntu 24.04's MPICH makes
# two jobs of one each.) Asked once; the answer is in MSDU_MPIRUN_WORKS_<family>.
function(msdu_check_mpirun family)
    if(DEFINED CACHE{MSDU_MPIRUN_WORKS_${family}} OR NOT MSDU_MPIRUN_${family})
        return()
    endif()
    set(probe ${CMAKE_CURRENT_BINARY_DIR}/mpi_probe_${family})
    execute_process(COMMAND ${MSDU_MPICC_${family}}
        -o ${probe} ${CMAKE_CURRENT_SOURCE_DIR}/backend/mpi_probe.c RESULT_VARIABLE code OUTPUT_QUIET ERROR_QUIET)
    if(code EQUAL 0)
        execute_process(COMMAND ${CMAKE_COMMAND} -E env ${msdu_mpi_environment}
            ${MSDU_MPIRUN_${family}} -n 2 ${probe} TIMEOUT 60 RESULT_VARIABLE code
            OUTPUT_QUIET ERROR_QUIET)
    endif()
    set(works FALSE)
    if(code EQUAL 0)
        set(works TRUE)
    endif()
    set(MSDU_MPIRUN_WORKS_${family} ${works} CACHE INTERNAL "mpirun.${family} starts jobs")
endfunction()

get_property(msdu_mpi_families GLOBAL PROPERTY MSDU_MPI_FAMILIES)
foreach(family IN LISTS msdu_mpi_families)
    find_program(MSDU_MPIRUN_${family} mpirun.${family})
    msdu_check_mpirun(${family})
    if(NOT MSDU_MPIRUN_WORKS_${family})
        list(REMOVE_ITEM msdu_mpi_families ${family})
        list(REMOVE_ITEM msdu_mpi_tested ${family})
        msdu_register_test(mpi_${family} sh -c
            "echo 'skipped: mpirun.${family} does not make one job of two processes'; exit 77")
    endif()
endforeach()
foreach(family IN LISTS msdu_mpi_tested)
    find_program(MSDU_MPIRUN_${family} mpirun.${family})
    mark_as_advanced(MSDU_MPIRUN_${family})
endforeach()
