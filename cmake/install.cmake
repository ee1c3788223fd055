# SPDX-License-Identifier: Apache-2.0
# Two components: `python` (the shared libraries beside the Python package) and the C++ package, find_package(linattn).

set_target_properties(linattn PROPERTIES INSTALL_RPATH "")
install(TARGETS linattn LIBRARY DESTINATION linattn/_lib COMPONENT python NAMELINK_SKIP)
if(TARGET linattn_ffi)
  install(TARGETS linattn_ffi LIBRARY DESTINATION linattn/_lib COMPONENT python)
endif()

include(CMakePackageConfigHelpers)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/linattn)
install(TARGETS linattn EXPORT linattn LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cpp NAMELINK_COMPONENT cpp)
install(DIRECTORY include/linattn DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT cpp)
install(EXPORT linattn NAMESPACE linattn:: FILE linattn-config.cmake DESTINATION ${package} COMPONENT cpp)
write_basic_package_version_file(linattn-config-version.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/linattn-config-version.cmake DESTINATION ${package} COMPONENT cpp)
