# SPDX-License-Identifier: Apache-2.0

# find_in_site_packages(RESULT PATH): an isolated build has several folders of packages.
function(find_in_site_packages result path)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
      "import os, sys; print(next((f for p in sys.path if os.path.exists(f := p + '/${path}')), '${path}'))"
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(${result} ${found} PARENT_SCOPE)
endfunction()
