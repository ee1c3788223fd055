# SPDX-License-Identifier: Apache-2.0
# Compiler flags, and the functions that turn a folder into an object library.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_C_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g")
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)  # a build folder can be carried to a machine with a GPU

if((CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 11) OR
   (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15))
  message(FATAL_ERROR "linattn needs g++ 11 or clang 15, or newer; "
                      "this is ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
endif()

cmake_path(GET Python_EXECUTABLE PARENT_PATH python_bin)
find_program(CCACHE ccache HINTS ${python_bin})
if(CCACHE)
  # Relative paths, so that a clone in another folder finds the same objects.
  set(compiler_cache ${CCACHE} base_dir=${PROJECT_SOURCE_DIR})
  set(CMAKE_C_COMPILER_LAUNCHER ${compiler_cache})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${compiler_cache})
endif()

# What every target of ours is compiled with.
add_library(linattn_flags INTERFACE)
target_include_directories(linattn_flags INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(linattn_flags INTERFACE Threads::Threads ${CMAKE_DL_LIBS})
target_compile_definitions(linattn_flags INTERFACE $<$<OR:$<BOOL:${LINATTN_CUDA}>,$<BOOL:${LINATTN_SIMT}>>:LINATTN_HAS_CUDA=1>)
set(host $<COMPILE_LANGUAGE:C,CXX>)
target_compile_options(linattn_flags INTERFACE
  # No fused multiply-add behind our back: the oracle and the emulated roundings mean what they say on every compiler.
  $<${host}:-Wall$<SEMICOLON>-Wextra$<SEMICOLON>-ffp-contract=off$<SEMICOLON>-ffile-prefix-map=${PROJECT_SOURCE_DIR}=.>
  $<$<AND:${host},$<BOOL:${LINATTN_WERROR}>>:-Werror>)
if(LINATTN_SANITIZE)
  set(sanitizers -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_compile_options(linattn_flags INTERFACE $<${host}:${sanitizers}>)
  # Sanitized code makes GCC see uninitialized members in its own library (std::regex); the other builds still warn.
  target_compile_options(linattn_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:$<${host}:-Wno-maybe-uninitialized>>)
  target_link_options(linattn_flags INTERFACE ${sanitizers})
endif()

# linattn_objects(NAME PATTERN...): an object library of the files that match; empty is fine.
function(linattn_objects name)
  file(GLOB sources CONFIGURE_DEPENDS ${ARGN})
  if(NOT sources)
    file(WRITE ${CMAKE_BINARY_DIR}/${name}_empty.cpp "")
    set(sources ${CMAKE_BINARY_DIR}/${name}_empty.cpp)
  endif()
  add_library(${name} OBJECT ${sources})
  target_link_libraries(${name} PUBLIC linattn_flags)
endfunction()

# Files named *_avx2.cpp and *_avx512.cpp are the only ones that may use more than the baseline; core chooses at run time.
function(linattn_vector_flags folder)
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    return()
  endif()
  set(avx2 -mavx2 -mfma -mf16c -ffp-contract=fast)
  file(GLOB sources ${folder}/*_avx2.cpp)
  set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS "${avx2}")
  file(GLOB sources ${folder}/*_avx512.cpp)
  set(avx512 ${avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND avx512 -Wno-uninitialized -Wno-maybe-uninitialized)  # GCC's own intrinsics (its bug 105593)
  endif()
  set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS "${avx512}")
endfunction()
