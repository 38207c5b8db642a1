// The loops for processors with AVX512.
#define TRUENORM_TABLE avx512
#if defined(TRUENORM_X86)
#include "loops.inc"
#endif
