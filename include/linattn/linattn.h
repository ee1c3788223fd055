// SPDX-License-Identifier: Apache-2.0
//
// linattn for C++: include this. Standard library only; links against liblinattn.
#pragma once

#include "linattn/error.h"
#include "linattn/op.h"
#include "linattn/plan.h"
#include "linattn/problem.h"
