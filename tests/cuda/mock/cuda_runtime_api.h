#pragma once
#include "cuda/mock/cuda_runtime.h"
