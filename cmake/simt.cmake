# SPDX-License-Identifier: Apache-2.0
# src/cuda compiled by the C++ compiler, to run on the CPU: see tests/simt/simt.h. The same interface as cuda.cmake.

find_in_site_packages(cuda_headers nvidia/cu13/include)

# linattn_simulated(SOURCE...): these are device code.
function(linattn_simulated)
  set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX
    INCLUDE_DIRECTORIES "${PROJECT_SOURCE_DIR}/tests/simt/include;${PROJECT_SOURCE_DIR}/tests/simt"
    # nvcc does not assume strict aliasing, and neither do kernels.
    COMPILE_OPTIONS "-include;simt.h;-fno-strict-aliasing;-Wno-unknown-pragmas;-Wno-unused-variable;-Wno-missing-field-initializers")
endfunction()

# linattn_cuda_objects(NAME FOLDER): all of src/cuda/FOLDER.
function(linattn_cuda_objects name folder)
  linattn_objects(${name} src/cuda/${folder}/*.cu src/cuda/${folder}/*/*.cu src/cuda/${folder}/*.cpp)
  target_include_directories(${name} SYSTEM PRIVATE ${cuda_headers})
  get_target_property(sources ${name} SOURCES)
  linattn_simulated(${sources})
endfunction()

linattn_objects(linattn_simt tests/simt/machine.cpp tests/simt/runtime.cpp)
target_include_directories(linattn_simt SYSTEM PRIVATE ${cuda_headers})
