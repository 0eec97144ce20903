// Included by vLLM's kernels, which use nothing of it.
#pragma once
