// SPDX-License-Identifier: Apache-2.0
#pragma once

#if defined(__CUDACC__)
#define LINATTN_HOST_DEVICE __host__ __device__
#else
#define LINATTN_HOST_DEVICE
#endif
