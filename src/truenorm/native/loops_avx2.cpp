// The loops for processors with AVX2.
#define TRUENORM_TABLE avx2
#if defined(TRUENORM_X86)
#include "loops.inc"
#endif
