# SPDX-License-Identifier: Apache-2.0
# The CUDA compiler, by default the one that pip installed beside Python_EXECUTABLE.

if(CMAKE_VERSION VERSION_LESS 4.0)
  message(FATAL_ERROR "LINATTN_CUDA needs CMake 4.0: older ones do not know the C++20 of CUDA 13; pip has it")
endif()

set(nvcc ${LINATTN_CUDA_COMPILER})
if(NOT nvcc)
  find_in_site_packages(nvcc nvidia/cu13/bin/nvcc)
endif()
if(NOT EXISTS ${nvcc})
  message(FATAL_ERROR "LINATTN_CUDA is on and ${nvcc} does not exist: pip install -r requirements/cuda.txt, "
                      "or set LINATTN_CUDA_COMPILER")
endif()

set(CMAKE_CUDA_COMPILER ${nvcc})
set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
set(CMAKE_CUDA_ARCHITECTURES OFF)
# The static runtime asks for the driver when it is first used, so one binary also loads where there is none.
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
set(cuda_headers ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -g1 -DNDEBUG")
# The static kernel gate reads what ptxas says of each object.
set(CMAKE_CUDA_COMPILER_LAUNCHER ${PROJECT_SOURCE_DIR}/tools/keep_ptxas_log.sh ${compiler_cache})

# linattn_cuda_objects(NAME FOLDER ARCHITECTURES): all of src/cuda/FOLDER, host files (register.cpp) included.
function(linattn_cuda_objects name folder architectures)
  linattn_objects(${name} src/cuda/${folder}/*.cu src/cuda/${folder}/*/*.cu src/cuda/${folder}/*.cpp)
  # "90" would add PTX of each architecture; only compute_80 is shipped as PTX.
  list(TRANSFORM architectures REPLACE "^([0-9]+[a-z]?)$" "\\1-real")
  set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES "${architectures}")
  target_include_directories(${name} SYSTEM PRIVATE ${cuda_headers})
  target_compile_options(${name} PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:-lineinfo;--expt-relaxed-constexpr;-Xptxas=-v;--compiler-options=-Wall,-Wextra>")
  if(LINATTN_WERROR)
    target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;--compiler-options=-Werror>")
  endif()
endfunction()
