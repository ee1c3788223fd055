# SPDX-License-Identifier: Apache-2.0
# Every header compiles alone, and the snippets in fail/ do not compile. The compiler is called directly: no objects.

set(cxx ${CMAKE_CXX_COMPILER} -fsyntax-only -Wall -Wextra -Werror)
set(includes -I${PROJECT_SOURCE_DIR}/include)
set(src_includes ${includes} -I${PROJECT_SOURCE_DIR}/src)

function(linattn_header_test name)
  add_test(NAME compile.${name} COMMAND ${ARGN})
  set_tests_properties(compile.${name} PROPERTIES TIMEOUT 60)
endfunction()

file(GLOB headers RELATIVE ${PROJECT_SOURCE_DIR}/include CONFIGURE_DEPENDS include/linattn/*.h)
foreach(header ${headers})
  foreach(standard 17 20)
    linattn_header_test(${header}.c++${standard} ${cxx} -std=c++${standard} ${includes} -include ${header} -x c++ /dev/null)
  endforeach()
endforeach()
linattn_header_test(linattn/c.h.c99
  ${CMAKE_C_COMPILER} -fsyntax-only -Wall -Wextra -Wpedantic -Werror -std=c99 ${includes} -include linattn/c.h -x c /dev/null)

# CUDA headers are compiled by the CUDA files that include them.
file(GLOB_RECURSE headers RELATIVE ${PROJECT_SOURCE_DIR}/src CONFIGURE_DEPENDS src/*.h)
list(FILTER headers EXCLUDE REGEX "^cuda/")
foreach(header ${headers})
  set(flags)
  if(header MATCHES "^cpu/")
    list(APPEND flags -DLINATTN_ISA=alone)  # the vector code is compiled once per instruction set, each in its namespace
  endif()
  if(header MATCHES "_avx2")
    list(APPEND flags -mavx2 -mfma -mf16c)
  elseif(header MATCHES "_avx512")
    list(APPEND flags -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl)
  endif()
  linattn_header_test(src/${header} ${cxx} -std=c++20 ${flags} ${src_includes} -include ${header} -x c++ /dev/null)
endforeach()

# A snippet must compile without MUST_FAIL (so that it fails for the reason it names) and not with it. Those named src_*
# are about the inside, which is C++20.
file(GLOB snippets CONFIGURE_DEPENDS tests/compile/fail/*.cpp)
foreach(snippet ${snippets})
  cmake_path(GET snippet STEM stem)
  set(standard 17)
  if(stem MATCHES "^src_")
    set(standard 20)
  endif()
  linattn_header_test(fail/${stem}.control ${cxx} -std=c++${standard} ${src_includes} ${snippet})
  linattn_header_test(fail/${stem} ${cxx} -std=c++${standard} -DMUST_FAIL ${src_includes} ${snippet})
  set_tests_properties(compile.fail/${stem} PROPERTIES WILL_FAIL TRUE)
endforeach()

# The installed package, as a user's project finds it.
if(NOT LINATTN_SANITIZE)
  set(prefix ${CMAKE_BINARY_DIR}/installed)
  add_test(NAME package.install COMMAND ${CMAKE_COMMAND} --install ${CMAKE_BINARY_DIR} --component cpp --prefix ${prefix})
  add_test(NAME package.consumer COMMAND ${CMAKE_CTEST_COMMAND}
    --build-and-test ${PROJECT_SOURCE_DIR}/tests/compile/consumer ${CMAKE_BINARY_DIR}/consumer
    --build-generator Ninja --build-makeprogram ${CMAKE_MAKE_PROGRAM}
    --build-options -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}
    --test-command ${CMAKE_BINARY_DIR}/consumer/consumer)
  set_tests_properties(package.install PROPERTIES TIMEOUT 60 FIXTURES_SETUP installed)
  set_tests_properties(package.consumer PROPERTIES TIMEOUT 120 FIXTURES_REQUIRED installed)
endif()
