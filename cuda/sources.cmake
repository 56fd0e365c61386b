# What the plug-in and the modules for tests are made of.
set(LLMSRV_CUDA_LAUNCHES attention_bf16.cu attention_f16.cu attention_f32.cu fp8_linear.cu linear.cu rows.cu sampling.cu)
list(TRANSFORM LLMSRV_CUDA_LAUNCHES PREPEND ${PROJECT_SOURCE_DIR}/cuda/launch/)
set(LLMSRV_CUDA_HOPPER_LAUNCHES ${PROJECT_SOURCE_DIR}/cuda/launch/attention_hopper.cu)

# The launches behind the plug-in's table, and the rest of the plug-in.
set(LLMSRV_CUDA_TABLE draws.cu last_error.cu launches.cu products.cu)
list(TRANSFORM LLMSRV_CUDA_TABLE PREPEND ${PROJECT_SOURCE_DIR}/cuda/plugin/)
set(LLMSRV_CUDA_PLUGIN plugin.cu runtime.cu)
list(TRANSFORM LLMSRV_CUDA_PLUGIN PREPEND ${PROJECT_SOURCE_DIR}/cuda/plugin/)

# The launches as functions of Python, and kernels that only tests and measurements use.
set(LLMSRV_CUDA_BINDINGS bindings_attention.cc bindings_communicator.cc bindings_conformance.cc bindings_fp8.cc bindings_hopper.cc
                         bindings_linear.cc bindings_products.cc bindings_rows.cc bindings_sampling.cc)
list(TRANSFORM LLMSRV_CUDA_BINDINGS PREPEND ${PROJECT_SOURCE_DIR}/cuda/emulation/)
set(LLMSRV_CUDA_CONFORMANCE ${PROJECT_SOURCE_DIR}/cuda/conformance/hopper.cu
                            ${PROJECT_SOURCE_DIR}/cuda/conformance/peaks.cu
                            ${PROJECT_SOURCE_DIR}/cuda/conformance/wrappers.cu)

# NVIDIA's libraries, opened at run time.
set(LLMSRV_CUDA_LIBRARY communicator.cc cublaslt.cc dense_products.cc nccl.cc nvidia_library.cc)
list(TRANSFORM LLMSRV_CUDA_LIBRARY PREPEND ${PROJECT_SOURCE_DIR}/cuda/library/)
