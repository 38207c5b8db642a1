// The loops for every processor of the target.
#define TRUENORM_TABLE baseline
#include "loops.inc"
