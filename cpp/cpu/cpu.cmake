# The CPU backend. One kernel source per instruction set, each file with its own flags.
llmsrv_library(cpu SOURCES cpu_backend.cc int8_linear.cc isa.cc kernels_scalar.cc paged_attention.cc kernels_int8_scalar.cc DEPENDS ops)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  target_sources(llmsrv_cpu PRIVATE ${CMAKE_CURRENT_LIST_DIR}/kernels_avx2.cc ${CMAKE_CURRENT_LIST_DIR}/kernels_avx512.cc
                                    ${CMAKE_CURRENT_LIST_DIR}/kernels_avx512_bf16.cc
                                    ${CMAKE_CURRENT_LIST_DIR}/kernels_attention_avx512_bf16.cc ${CMAKE_CURRENT_LIST_DIR}/kernels_amx.cc
                                    ${CMAKE_CURRENT_LIST_DIR}/kernels_int8_avx2.cc ${CMAKE_CURRENT_LIST_DIR}/kernels_int8_avx512.cc)
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/kernels_avx2.cc PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma")
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/kernels_int8_avx2.cc PROPERTIES COMPILE_OPTIONS
    "-mavx2;-mfma;-mf16c")
  # GCC's own AVX-512 header copies a variable from itself to leave it undefined, and warns about that (GCC bug 105593).
  set(avx512_options -mavx2 -mfma -mavx512f -mavx512bw -mavx512vl -mavx512dq -Wno-uninitialized -Wno-maybe-uninitialized)
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/kernels_avx512.cc PROPERTIES COMPILE_OPTIONS "${avx512_options}")
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/kernels_avx512_bf16.cc
    ${CMAKE_CURRENT_LIST_DIR}/kernels_attention_avx512_bf16.cc PROPERTIES COMPILE_OPTIONS
    "${avx512_options};-mavx512bf16")
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/kernels_amx.cc PROPERTIES COMPILE_OPTIONS
    "${avx512_options};-mamx-tile;-mamx-bf16")
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/kernels_int8_avx512.cc PROPERTIES COMPILE_OPTIONS
    "${avx512_options};-mavx512vnni;-mgfni")
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  target_sources(llmsrv_cpu PRIVATE ${CMAKE_CURRENT_LIST_DIR}/kernels_int8_neon.cc)
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/kernels_int8_neon.cc PROPERTIES COMPILE_OPTIONS
    "-march=armv8.2-a+dotprod")
endif()
