# SPDX-License-Identifier: Apache-2.0
# C++ tests, header checks and examples; one ctest entry each, each with a watchdog.

find_package(GTest QUIET)
if(NOT GTest_FOUND)
  message(STATUS "GoogleTest is not installed: fetching version 1.17.0")
  include(FetchContent)
  set(INSTALL_GTEST OFF)
  FetchContent_Declare(googletest
    URL https://github.com/google/googletest/releases/download/v1.17.0/googletest-1.17.0.tar.gz
    URL_HASH SHA256=65fab701d9829d38cb77c14acdc431d2108bfdbf8979e40eb8ae567edf10b27c)
  FetchContent_MakeAvailable(googletest)
endif()
include(GoogleTest)

set(LINATTN_TEST_TIMEOUT 300 CACHE STRING "seconds that one test may take")

# linattn_test(NAME PATTERN...): a GoogleTest program over the object libraries, so that internals are reachable.
function(linattn_test name)
  file(GLOB sources CONFIGURE_DEPENDS ${ARGN})
  if(NOT sources)
    return()
  endif()
  add_executable(${name} ${sources})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE linattn_flags ${objects} GTest::gtest GTest::gtest_main)
  # The tests of the ABI open the shared library.
  target_compile_definitions(${name} PRIVATE LINATTN_LIBRARY_NAME="$<TARGET_SONAME_FILE_NAME:linattn>")
  add_dependencies(${name} linattn)
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${LINATTN_TEST_TIMEOUT} WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
endfunction()

linattn_test(linattn_unit_tests tests/unit/*.cpp)
linattn_test(linattn_ops_tests tests/ops/*.cpp)
if(LINATTN_CUDA OR LINATTN_SIMT)
  # The conformance driver once more: main.cpp of tests/device puts its tensors on the GPU.
  linattn_test(linattn_device_tests tests/device/*.cpp tests/ops/*.cpp)
  target_include_directories(linattn_device_tests SYSTEM PRIVATE ${cuda_headers})
  if(LINATTN_SIMT)
    target_sources(linattn_device_tests PRIVATE tests/simt/test_machine.cpp)
    linattn_simulated(tests/simt/test_machine.cpp)
  endif()
endif()

# Examples see what a user sees: the public headers and the shared library.
file(GLOB examples CONFIGURE_DEPENDS examples/*.cpp)
foreach(source ${examples})
  cmake_path(GET source STEM stem)
  add_executable(example_${stem} ${source})
  target_link_libraries(example_${stem} PRIVATE linattn)
  target_compile_options(example_${stem} PRIVATE -Wall -Wextra $<$<BOOL:${LINATTN_WERROR}>:-Werror>)
  target_link_options(example_${stem} PRIVATE ${sanitizers})
  add_test(NAME example.${stem} COMMAND example_${stem})
  set_tests_properties(example.${stem} PROPERTIES TIMEOUT ${LINATTN_TEST_TIMEOUT})
endforeach()

add_test(NAME documents
  COMMAND ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/docs_check.py $<TARGET_FILE:example_support_table>)

include(tests/compile/compile.cmake)
