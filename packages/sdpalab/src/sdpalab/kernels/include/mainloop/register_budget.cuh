// Registers of the warpgroups of a block on sm_90a, which setmaxnreg redistributes after the launch; the total stays the
// same.
#pragma once

constexpr int WARPGROUP = 128;
constexpr int WARP_M = 16;

// With one consumer two blocks share an SM, unless a product with an accumulator of O for D = 256 exceeds the registers
// of a thread at launch: ptxas refuses that.
template <int CONSUMERS>
struct Registers {
    static constexpr int AT_LAUNCH = CONSUMERS == 2 || HEAD_DIM == 256 ? 168 : 128;
    static constexpr int PRODUCER = CONSUMERS == 3 ? 32 : 24;
    static constexpr int CONSUMER = CONSUMERS == 3 ? 160 : AT_LAUNCH == 128 ? 232 : 240;
    static_assert(PRODUCER + CONSUMERS * CONSUMER <= (1 + CONSUMERS) * AT_LAUNCH,
                  "setmaxnreg.inc waits forever for registers that the block does not have");
};
