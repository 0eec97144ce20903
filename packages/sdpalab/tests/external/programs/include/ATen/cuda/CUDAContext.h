// PyTorch's header of this name, of which SageAttention's quantisation uses nothing.
#pragma once
