# SPDX-License-Identifier: Apache-2.0
# The binding: a separate shared library over the public headers, found by Python through tvm-ffi.

foreach(what includedir dlpack-includedir libfiles)
  execute_process(COMMAND ${Python_EXECUTABLE} -m tvm_ffi.config --${what}
                  OUTPUT_VARIABLE tvm_ffi_${what} OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "${Python_EXECUTABLE} has no tvm_ffi: pip install apache-tvm-ffi==0.1.12, or -DLINATTN_FFI=OFF")
  endif()
endforeach()

add_library(linattn_ffi SHARED bindings/ffi.cpp)
target_include_directories(linattn_ffi SYSTEM PRIVATE ${tvm_ffi_includedir} ${tvm_ffi_dlpack-includedir})
# The loader finds libtvm_ffi.so by its SONAME: Python has loaded it before.
target_link_libraries(linattn_ffi PRIVATE linattn_flags linattn ${tvm_ffi_libfiles})
set_target_properties(linattn_ffi PROPERTIES INSTALL_RPATH "$ORIGIN")
