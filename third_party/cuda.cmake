# The CUDA plug-in, when LLMSRV_CUDA is ON. nvcc is a tool that is called, not a CMake language: so every CMake that
# builds the core also builds the plug-in, and the architectures are nvcc's own names.
if(NOT LLMSRV_CUDA)
  return()
endif()

# NVIDIA's wheels put the compiler, its headers and the static runtime into one folder of site-packages.
execute_process(
  COMMAND ${Python_EXECUTABLE} -c
          "import importlib.util as u; s = u.find_spec('nvidia'); print(*(f'{p}/cu13' for p in (s.submodule_search_locations if s else [])), sep=';')"
  OUTPUT_VARIABLE llmsrv_cuda_wheels OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
find_program(LLMSRV_NVCC nvcc HINTS ENV CUDA_HOME ${llmsrv_cuda_wheels} /usr/local/cuda PATH_SUFFIXES bin)
if(NOT LLMSRV_NVCC)
  message(FATAL_ERROR "llmsrv: LLMSRV_CUDA=ON, but nvcc was not found: set CUDA_HOME, or pip install nvidia-cuda-nvcc")
endif()
# A wrapper in PATH tells where its toolkit is.
execute_process(COMMAND ${LLMSRV_NVCC} --dryrun -x cu -c /dev/null -o /dev/null ERROR_VARIABLE llmsrv_nvcc_says OUTPUT_QUIET)
string(REGEX MATCH "#\\$ TOP=([^\n]*)" llmsrv_nvcc_top "${llmsrv_nvcc_says}")
get_filename_component(llmsrv_cuda_home "${CMAKE_MATCH_1}" ABSOLUTE)
find_file(LLMSRV_CUDART libcudart_static.a HINTS ${llmsrv_cuda_home} PATH_SUFFIXES lib64 lib targets/x86_64-linux/lib
          NO_DEFAULT_PATH)
if(NOT LLMSRV_CUDART)
  message(FATAL_ERROR "llmsrv: libcudart_static.a was not found in ${llmsrv_cuda_home}")
endif()
message(STATUS "llmsrv: CUDA plug-in with ${LLMSRV_NVCC}")
add_subdirectory(${PROJECT_SOURCE_DIR}/cuda)
